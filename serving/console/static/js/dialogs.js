// Confirmation dialogs, and notifications of results.
//
// Every change asks for a confirmation that names the object. For an irreversible change the user types its name.
// Dialogs are native <dialog> elements: they trap the focus, close on Escape, and restore the focus afterwards.

import { el, fill } from "./dom.js";

/**
 * Open a dialog; on submit, call `act(values)` and close it. An error is shown in the dialog, which stays open.
 * `fields` are `{ name, label, kind, value, options, hint, required }`; `mustType` is a text that the user must type.
 */
export function question({ title, text, button, danger = false, fields = [], mustType = "", act }) {
  const wrong = el("p", { class: "wrong", role: "alert" });
  const go = el("button", { type: "submit", class: danger ? "danger" : "primary" }, button);
  const inputs = fields.map(input);
  const typed = mustType ? el("input", { id: "typed", autocomplete: "off", spellcheck: "false" }) : null;
  if (typed) {
    go.disabled = true;
    typed.oninput = () => (go.disabled = typed.value !== mustType);
  }
  const form = el(
    "form",
    { method: "dialog" },
    el("h2", { id: "asked" }, title),
    text ? [text].flat().map((one) => el("p", {}, one)) : null,
    inputs.map((one) => one.node),
    typed ? el("label", { for: "typed", class: "field" }, "Type ", el("code", {}, mustType), " to confirm", typed) : null,
    wrong,
    el("div", { class: "dialog-foot" }, el("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), go),
  );
  const dialog = el("dialog", { "aria-labelledby": "asked" }, form);
  form.onsubmit = async (event) => {
    event.preventDefault();
    go.disabled = true;
    fill(wrong);
    const before = location.hash;
    try {
      const said = await act(Object.fromEntries(inputs.map((one) => [one.name, one.value()])));
      dialog.close();
      tell(typeof said === "string" || Array.isArray(said) ? said : "Done");
      if (location.hash === before) dispatchEvent(new CustomEvent("quire:changed"));
    } catch (error) {
      if (error.status === 401) {
        dialog.close();
        dispatchEvent(new CustomEvent("quire:log-in"));
        return;
      }
      if (error.status === undefined && !error.isInput) console.error(error);
      wrong.textContent = error.message;
      go.disabled = false;
    }
  };
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  (inputs[0]?.control ?? typed ?? go).focus();
  return dialog;
}

/** Return an error about the user's input. */
export function inputError(text) {
  return Object.assign(new Error(text), { isInput: true });
}

function input({ name, label, kind = "text", value = "", options = null, hint = "", required = false, rows = 8, ...more }) {
  const id = `field-${name}`, described = hint ? `${id}-hint` : null;
  const common = { id, required, "aria-describedby": described };
  let control;
  if (options) {
    control = el("select", common, options.map(([key, text]) => el("option", { value: key, selected: key === value }, text)));
  } else if (kind === "area") {
    control = el("textarea", { ...common, rows, spellcheck: "false" }, value);
  } else if (kind === "check") {
    control = el("input", { ...common, type: "checkbox", checked: value === true });
  } else {
    control = el("input", { ...common, type: kind, value, autocomplete: "off", spellcheck: "false", step: kind === "datetime-local" ? 1 : null, ...more });
  }
  const field = kind === "check" ? [control, " ", label] : [label, control];
  const node = el("label", { class: `field ${kind}`, for: id }, field, hint ? el("span", { class: "hint", id: described }, hint) : null);
  return { name, node, control, value: () => (kind === "check" ? control.checked : control.value) };
}

/** Show a short notification without moving the focus. A notification with a link stays longer. */
export function tell(said) {
  const place = document.getElementById("told");
  const note = el("p", {}, said);
  place.append(note);
  setTimeout(() => note.remove(), typeof said === "string" ? 5_000 : 20_000);
}
