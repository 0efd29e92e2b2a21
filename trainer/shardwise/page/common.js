// What every page has: elements, numbers and times in words, the button for the colours. Each page's own script follows.
"use strict";
addEventListener("error", (e) => { document.documentElement.dataset.error = e.message; });
// Texts become text nodes and attributes, never HTML.
function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) if (value !== null && value !== undefined) node.setAttribute(name, value);
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== ""));
  return node;
}
const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const known = (value) => value !== null && value !== undefined;
const number = (value, digits) => value.toLocaleString("en", { maximumFractionDigits: digits, minimumFractionDigits: digits });
const plural = (count, word) => `${number(count, 0)} ${word}${count === 1 ? "" : "s"}`;
const percent = (share) => share > 0 && share < 0.0005 ? "under 0.1 %" : `${number(100 * share, share < 0.0995 && share > 0 ? 1 : 0)} %`;
const places = (value) => { const size = Math.abs(value); return size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 3 : 4; };
const plain = (value) => value !== 0 && Math.abs(value) < 0.001 ? value.toExponential(2) : number(value, places(value));
function seconds(value) {
  if (value === 0) return "0 s";
  if (value < 0.001) return `${number(value * 1e6, 0)} µs`;
  if (value < 1) return `${number(value * 1000, value < 0.01 ? 1 : 0)} ms`;
  if (value < 120) return `${number(value, value < 10 ? 2 : 1)} s`;
  const minutes = Math.floor(value / 60);
  if (minutes < 120) return `${minutes} min ${Math.floor(value % 60)} s`;
  return minutes < 48 * 60 ? `${Math.floor(minutes / 60)} h ${minutes % 60} min` : `${number(value / 86400, 1)} days`;
}
const clock = (time) => new Date(time * 1000).toISOString().replace("T", " ").slice(0, 19) + " UTC";
function themeButton() {
  const themes = ["light dark", "light", "dark"];
  const toggle = h("button", { type: "button" });
  let theme = 0;
  const set = (index) => {
    theme = index;
    document.documentElement.style.colorScheme = themes[theme];
    toggle.textContent = `Colours: ${["as the system", "light", "dark"][theme]}`;
  };
  toggle.addEventListener("click", () => set((theme + 1) % 3));
  set(0);
  return toggle;
}
