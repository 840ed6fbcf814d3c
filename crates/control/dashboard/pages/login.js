// The page for clients without a session.

import { call } from "../api.js";
import { problemText } from "../dialog.js";
import { h, replace, setText } from "../dom.js";

/** Shows the form; `done` is called after a login. */
export function showLogin(app, done, reason) {
  const error = h("p", { class: "error", role: "alert" }, reason ?? "");
  const token = h("input", {
    id: "token",
    name: "token",
    type: "password",
    required: true,
    autocomplete: "current-password",
    spellcheck: "false",
    "aria-describedby": "token-help",
  });
  const send = h("button", { type: "submit", class: "button primary" }, "Log in");
  const submit = async (event) => {
    event.preventDefault();
    send.disabled = true;
    setText(error, "");
    try {
      await call("POST", "/session", { body: { token: token.value.trim() }, login: true });
      done();
    } catch (problem) {
      setText(error, problem.code === "bad_token" ? "This token is not valid." : problemText(problem));
      send.disabled = false;
      token.select();
      token.focus();
    }
  };
  const form = h(
    "form",
    { class: "card login", onsubmit: submit },
    h("h1", {}, "Forebay"),
    h(
      "div",
      { class: "field" },
      h("label", { for: "token" }, "Token"),
      token,
      h(
        "p",
        { class: "help", id: "token-help" },
        "An administrator of the server makes one: ",
        h("code", {}, "forebay token create NAME --role ROLE"),
      ),
    ),
    error,
    send,
  );
  document.title = "Log in – Forebay";
  replace(app, h("main", { id: "main", class: "login-page", tabindex: "-1" }, form));
  token.focus();
}
