// Dialogs with forms, confirmations, and short messages.

import { newKey } from "./api.js";
import { h, setText } from "./dom.js";

const TOAST_MS = 6000;
/** Most choices that a field suggests. */
const CHOICES = 500;

/** Shows a message for some seconds; screen readers read it. */
export function toast(text, kind = "") {
  const element = h("div", { class: `toast ${kind}` }, text);
  document.getElementById("toasts").append(element);
  setTimeout(() => element.remove(), TOAST_MS);
}

export function problemText(problem) {
  return problem.remedy ? `${problem.message} – ${problem.remedy}` : problem.message;
}

export function showProblem(problem) {
  if (problem.name === "AbortError") return;
  toast(problemText(problem), "bad");
}

/** Runs an action of a button; the button is disabled until it has ended, and a failure is shown. */
export async function act(button, work, done) {
  button.disabled = true;
  try {
    await work();
    if (done) toast(done, "good");
  } catch (problem) {
    showProblem(problem);
  }
  button.disabled = false;
}

let fields = 0;

/** Creates the input of a field: `{name, label, type, value, help, options, required, list, placeholder, when}`. */
function input(field) {
  fields += 1;
  const id = `field-${fields}`;
  const helpId = field.help ? `${id}-help` : undefined;
  const common = { id, name: field.name, "aria-describedby": helpId, required: field.required };
  let control;
  if (field.type === "select") {
    const options = field.options.map(([value, label]) =>
      h("option", { value, selected: value === field.value }, label),
    );
    control = h("select", common, options);
  } else if (field.type === "checkbox") {
    control = h("input", { ...common, type: "checkbox", checked: Boolean(field.value) });
  } else if (field.type === "textarea") {
    control = h("textarea", { ...common, rows: field.rows ?? 4 }, field.value ?? "");
  } else if (field.type === "file") {
    control = h("input", { ...common, type: "file" });
  } else {
    const list = field.list ? `${id}-list` : undefined;
    control = h("input", {
      ...common,
      type: field.type === "password" ? "password" : "text",
      value: field.value ?? "",
      list,
      placeholder: field.placeholder,
      autocomplete: field.type === "password" ? "new-password" : "off",
      spellcheck: "false",
    });
    if (list)
      field.choices = h(
        "datalist",
        { id: list },
        field.list.slice(0, CHOICES).map((value) => h("option", { value })),
      );
  }
  const help = field.help ? h("p", { class: "help", id: helpId }, field.help) : null;
  const label = h("label", { for: id }, field.label);
  const parts = field.type === "checkbox" ? [h("div", { class: "check" }, control, label)] : [label, control];
  return { control, element: h("div", { class: "field" }, parts, field.choices, help) };
}

function read(field, control) {
  if (field.type === "checkbox") return control.checked;
  if (field.type === "file") return control.files[0];
  const text = control.value;
  if (field.parse) {
    if (!text.trim() && !field.required) return undefined;
    return field.parse(text);
  }
  return field.trim === false ? text : text.trim();
}

/**
 * Opens a dialog with a form. `submit(values, key)` sends the request; the dialog stays open and shows the error if
 * it throws. `confirm` is a text that must be typed before. `key` is the same for repetitions of the same request.
 * `fields` may be empty; a field is hidden while its `when(values)` is false. For long work, the third argument of
 * `submit` has `report(done, total, label)`, which shows a bar, and `signal`, which is aborted when the dialog closes.
 * `blocked` is the reason why the request cannot be sent now.
 */
export function formDialog({
  title,
  intro,
  fields: list = [],
  action,
  danger = false,
  confirm,
  submit,
  done,
  blocked = null,
}) {
  const made = list.map((field) => ({ field, ...input(field) }));
  let typed = null;
  const error = h("p", { class: "error", role: "alert" });
  const closed = new AbortController();
  const bar = h("progress", { max: "1", value: "0" });
  const barLabel = h("span");
  const progress = h("p", { class: "help", hidden: true }, bar, " ", barLabel);
  const report = (now, total, label) => {
    progress.hidden = false;
    bar.value = total ? now / total : 0;
    bar.setAttribute("aria-label", label);
    setText(barLabel, label);
  };
  const send = h("button", { type: "submit", class: `button ${danger ? "danger" : "primary"}` }, action);
  const titleId = `dialog-${++fields}`;
  const shown = () => {
    const values = Object.fromEntries(
      made.map(({ field, control }) => [field.name, field.type === "checkbox" ? control.checked : control.value]),
    );
    for (const { field, control, element } of made) {
      element.hidden = Boolean(field.when && !field.when(values));
      // The browser demands no value for it then.
      control.disabled = element.hidden;
    }
    send.disabled = blocked !== null || (typed !== null && typed.control.value !== confirm);
  };
  if (confirm !== undefined && blocked === null) {
    typed = input({ name: "confirm", label: "To confirm, type ", required: true });
    typed.element.querySelector("label").append(h("code", { class: "confirm-text" }, confirm));
  }
  const cancel = h("button", { type: "button", class: "button", onclick: () => dialog.close() }, "Cancel");
  const form = h(
    "form",
    { method: "dialog", oninput: shown },
    h("h2", { id: titleId }, title),
    intro ? h("div", { class: "intro" }, intro) : null,
    made.map(({ element }) => element),
    typed?.element,
    progress,
    blocked ? h("p", { class: "error" }, blocked) : error,
    h("div", { class: "dialog-buttons" }, cancel, send),
  );
  const dialog = h("dialog", { "aria-labelledby": titleId }, form);
  const keys = { text: "", key: "" };
  dialog.addEventListener("close", () => closed.abort());

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    setText(error, "");
    try {
      const values = {};
      for (const { field, control, element } of made) {
        if (!element.hidden) values[field.name] = read(field, control);
      }
      const text = JSON.stringify(values);
      if (keys.text !== text) Object.assign(keys, { text, key: newKey() });
      send.disabled = true;
      dialog.setAttribute("aria-busy", "true");
      const result = await submit(values, keys.key, { report, signal: closed.signal });
      dialog.close();
      if (done) toast(typeof done === "function" ? done(result, values) : done, "good");
    } catch (problem) {
      // A response that was received ends the request: the next one is another.
      if (problem.code !== "offline") keys.text = "";
      setText(error, problemText(problem));
    }
    progress.hidden = true;
    dialog.removeAttribute("aria-busy");
    send.disabled = false;
    shown();
  });
  return open(dialog, shown);
}

/** Shows a dialog and returns it; the focus goes back to where it was when it closes. */
function open(dialog, prepare) {
  const before = document.activeElement;
  dialog.addEventListener("close", () => {
    dialog.remove();
    if (before?.isConnected) before.focus();
    else document.getElementById("main")?.focus();
  });
  document.body.append(dialog);
  prepare?.();
  dialog.showModal();
  dialog.querySelector("input:not([type=checkbox]), select, textarea, button")?.focus();
  return dialog;
}

/** A confirmation without a text to type, for what does not destroy data. */
export function ask({ title, intro, action, danger, submit, done }) {
  return formDialog({ title, intro: h("p", {}, intro), action, danger, submit, done });
}

/** A dialog that shows something. */
export function showDialog(title, ...children) {
  const titleId = `dialog-${++fields}`;
  const close = h("button", { type: "button", class: "button primary", onclick: () => dialog.close() }, "Close");
  const dialog = h(
    "dialog",
    { "aria-labelledby": titleId, class: "wide-dialog" },
    h("h2", { id: titleId }, title),
    ...children,
    h("div", { class: "dialog-buttons" }, close),
  );
  return open(dialog);
}
