// Sets the theme before the first paint: that of the system, or the one that the user has chosen.
"use strict";
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("forebay-theme");
  } catch {
    // Storage is disabled: the theme of the system applies.
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
