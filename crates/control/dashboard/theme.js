// Sets the theme, first before the first paint: the one that the user has chosen, or that of the system.
"use strict";
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("forebay-theme");
  } catch {
    // Storage is disabled: the theme of the system applies.
  }
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const apply = () => (root.dataset.theme = system.matches ? "dark" : "light");
  if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;
  else {
    apply();
    root.dataset.themeOf = "system";
    system.addEventListener("change", () => root.dataset.themeOf && apply());
  }
})();
