// Creation of elements, and updates of a page without flicker.
//
// Only `el` and `svg` create elements. Children that are not nodes become text, never HTML: names of topics, messages
// and properties are untrusted input. Links stay within the console.
//
// A page is rendered from its data each time (`view` of `live.js`), and `morph` updates the displayed elements to
// match. Unchanged elements stay, with their focus, scroll position, typed text and open state.

const SVG = "http://www.w3.org/2000/svg";
const HANDLERS = ["onclick", "onsubmit", "oninput", "onchange", "onkeydown"];

export function el(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (HANDLERS.includes(name)) node[name] = value;
    else if (name === "href" && !/^[#/]/.test(value)) throw new Error(`link leaves the console: ${value}`);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

/** Update `current` to match `wanted`, an element of the same tag. Only differences are changed. */
export function morph(current, wanted) {
  if (current.hasAttribute("data-kept")) return;
  attributes(current, wanted);
  for (const name of HANDLERS) current[name] = wanted[name];
  children(current, wanted);
}

function attributes(current, wanted) {
  // A <details> stays open or closed as the user left it.
  for (const { name } of [...current.attributes]) {
    if (!wanted.hasAttribute(name) && !(name === "open")) current.removeAttribute(name);
  }
  for (const { name, value } of [...wanted.attributes]) {
    if (current.getAttribute(name) !== value && !(name === "open")) current.setAttribute(name, value);
  }
}

function children(current, wanted) {
  const keyed = new Map();
  for (const child of current.children) if (child.dataset.key) keyed.set(child.dataset.key, child);
  let at = current.firstChild;
  for (const next of [...wanted.childNodes]) {
    const key = next.dataset?.key;
    const same = key ? keyed.get(key) : at;
    if (same && fits(same, next)) {
      if (same === at) at = at.nextSibling;
      else current.insertBefore(same, at);
      if (same.nodeType === Node.TEXT_NODE) {
        if (same.data !== next.data) same.data = next.data;
      } else morph(same, next);
    } else {
      current.insertBefore(next, at);
    }
  }
  while (at) {
    const gone = at;
    at = at.nextSibling;
    gone.remove();
  }
}

function fits(node, next) {
  return node.nodeName === next.nodeName && node.dataset?.key === next.dataset?.key;
}

/** Download the concatenated `parts` as a file. */
export function save(name, type, parts) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob(parts, { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

/** Replace the children of `parent` by `nodes`. */
export function fill(parent, ...nodes) {
  parent.replaceChildren(...nodes.flat(Infinity).filter((one) => one));
}
