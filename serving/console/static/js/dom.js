// Elements, and how a page changes without flicker.
//
// `el` is the only maker of elements. What it is given as a child becomes text, whatever it holds: names of topics,
// messages and properties are other people's, and none of them is ever HTML. A link leads within the console.
//
// A page is drawn anew from its data each time (`view` of `live.js`), and `morph` changes what is shown into that: what
// is the same stays, with its focus, its scroll position, what was typed and what was opened.

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
    else if (name === "href" && !/^[#/]/.test(value)) throw new Error(`${value} leads out of the console`);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

/** Change `current` into `wanted`, which is of the same tag, touching only what differs. */
export function morph(current, wanted) {
  if (current.hasAttribute("data-kept")) return;
  attributes(current, wanted);
  for (const name of HANDLERS) current[name] = wanted[name];
  children(current, wanted);
}

function attributes(current, wanted) {
  // `open` of a <details> is what the reader last chose.
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

/** Have the browser save `parts`, texts that follow each other, as a file. */
export function save(name, type, parts) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob(parts, { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

/** Put `nodes` in place of what is in `parent`. */
export function fill(parent, ...nodes) {
  parent.replaceChildren(...nodes.flat(Infinity).filter((one) => one));
}
