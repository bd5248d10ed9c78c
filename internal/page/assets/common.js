// What both pages share: asking, elements, tables and charts. Names come from engines and requests, so text is set as text only.

export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

const tokenKey = "kvconn-token:" + location.host;

class Unauthorized extends Error {}

export async function ask(path) {
  const headers = {};
  const token = sessionStorage.getItem(tokenKey);
  if (token) headers.Authorization = "Bearer " + token;
  const answer = await fetch(path, { headers });
  if (answer.status === 401) throw new Unauthorized("the token is missing or wrong");
  if (!answer.ok) throw new Error(path + " answered " + answer.status);
  return answer.json();
}

// show draws again and again while the page is seen. draw gets the answers to all paths.
export function show(paths, draw, pauseMs = 5000) {
  const form = document.getElementById("token");
  let timer = 0;
  async function look() {
    clearTimeout(timer);
    try {
      const answers = await Promise.all(paths.map(ask));
      form.hidden = true;
      draw(...answers);
    } catch (error) {
      if (error instanceof Unauthorized) {
        if (form.hidden) {
          form.hidden = false;
          document.getElementById("token-value").focus();
        }
        badge("token needed", false);
      } else {
        badge("no answer", false);
        faults([{ detail: "The page gets no answer: " + error.message, remedy: "What is shown below is old. The page asks again by itself." }]);
      }
    }
    if (!document.hidden) timer = setTimeout(look, pauseMs);
  }
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    sessionStorage.setItem(tokenKey, document.getElementById("token-value").value.trim());
    look();
  });
  document.addEventListener("visibilitychange", () => document.hidden || look());
  look();
}

export function badge(text, good) {
  const node = document.getElementById("health");
  if (node.textContent !== text) node.textContent = text;
  node.className = "badge " + (good ? "good" : "bad");
}

export function faults(reasons) {
  const section = document.getElementById("faults");
  section.hidden = reasons.length === 0;
  section.replaceChildren(...reasons.map((r) => el("div", { class: "fault" }, el("strong", {}, r.detail), el("p", {}, r.remedy || ""))));
}

export function count(n) {
  return Math.round(n).toLocaleString("en");
}

export function bytes(n) {
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let unit = 0;
  for (n = Number(n) || 0; n >= 999.5 && unit < units.length - 1; n /= 1000) unit++;
  return (unit === 0 || n >= 99.5 ? n.toFixed(0) : n.toPrecision(3)) + " " + units[unit];
}

export const speed = (n) => (n > 0 ? bytes(n) + "/s" : "–");

export function part(of, whole) {
  return whole > 0 ? ((100 * of) / whole).toFixed(1) + "%" : "–";
}

export function duration(s) {
  if (s < 120) return Math.round(s) + " s";
  if (s < 7200) return Math.round(s / 60) + " min";
  if (s < 172800) return Math.round(s / 3600) + " h";
  return Math.round(s / 86400) + " d";
}

// table puts rows into a node. A column is [head, function of a row, "n" for numbers or "words" for text that may wrap].
export function table(id, label, rows, columns, empty) {
  const node = document.getElementById(id);
  if (rows.length === 0) {
    node.replaceChildren(el("p", { class: "empty" }, empty));
    return;
  }
  const kind = (c) => (c[2] ? { class: c[2] } : {});
  const head = el("tr", {}, ...columns.map((c) => el("th", { scope: "col", ...kind(c) }, c[0])));
  const body = rows.map((r) => el("tr", {}, ...columns.map((c) => el("td", kind(c), c[1](r)))));
  const scrolled = node.firstElementChild ? node.firstElementChild.scrollLeft : 0;
  const box = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, el("table", {}, head, ...body));
  const focused = node.contains(document.activeElement);
  node.replaceChildren(box);
  box.scrollLeft = scrolled;
  if (focused) box.focus();
}

// rates turns a counter into what it grew by in a second between looks; the first look has none.
export function rates(history, name) {
  const values = history.series[name] || [];
  return values.map((v, i) => (i === 0 ? null : Math.max(v - values[i - 1], 0) / Math.max(history.ages_s[i - 1] - history.ages_s[i], 1e-3)));
}

// ratio is what one counter grew by, as part of what others did, over a minute; null where these stood still.
export function ratio(history, of, ...whole) {
  const minute = Math.max(1, Math.round(60 / history.interval_s));
  const grown = (name, i) => (history.series[name] ? history.series[name][i] - history.series[name][Math.max(0, i - minute)] : 0);
  return history.ages_s.map((_, i) => {
    const all = whole.reduce((sum, name) => sum + grown(name, i), 0);
    return i > 0 && all > 0 ? Math.min(grown(of, i) / all, 1) : null;
  });
}

const svgNS = "http://www.w3.org/2000/svg";

function svg(tag, attributes, text) {
  const node = document.createElementNS(svgNS, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text) node.textContent = text;
  return node;
}

const width = 400, height = 120, left = 4, right = 396, top = 8, bottom = 102;

// chart draws lines over the last hour into a figure of its own, which it makes once. lines are {name, values}; text writes a value.
// The arrow keys, and a pointer, read single values.
export function chart(id, title, ages, lines, text, ceiling) {
  const holder = document.getElementById("charts");
  let figure = document.getElementById(id);
  if (!figure) {
    figure = el("figure", { id, tabindex: "0" }, el("figcaption", {}, title, el("span", { "aria-live": "off" })));
    figure.append(svg("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img" }), el("ul", { class: "key" }));
    holder.append(figure);
    reads(figure);
  }
  const most = ceiling || 1.1 * Math.max(...lines.flatMap((l) => l.values.map((v) => v || 0)), 0) || 1;
  // A process that has just started shows its first minutes over the whole width.
  const spanS = Math.min(3600, Math.max(60, ages[0] || 0));
  const x = (age) => right - (Math.min(age, spanS) / spanS) * (right - left);
  const y = (v) => bottom - (v / most) * (bottom - top);
  const drawing = figure.querySelector("svg");
  drawing.replaceChildren();
  for (const at of [top, (top + bottom) / 2, bottom]) drawing.append(svg("line", { class: "grid", x1: left, x2: right, y1: at, y2: at }));
  lines.forEach((line, n) => {
    let d = "", pen = false;
    line.values.forEach((v, i) => {
      if (v === null || ages[i] > 3605) pen = false;
      else {
        d += (pen ? "L" : "M") + x(ages[i]).toFixed(1) + " " + y(v).toFixed(1);
        pen = true;
      }
    });
    drawing.append(svg("path", { class: "s" + n, d }));
  });
  figure.querySelector("ul").replaceChildren(
    ...(lines.length > 1 ? lines.map((l, n) => el("li", {}, el("i", { class: "k" + n }), l.name)) : []),
    el("li", {}, `${duration(spanS)}, scale to ${text(most)}`),
  );
  const words = lines.map((l) => (lines.length > 1 ? l.name + " " : "") + told(l.values[l.values.length - 1], text)).join(", ");
  drawing.setAttribute("aria-label", `${title} over the last ${duration(spanS)}, now ${words}`);
  figure.data = { ages, lines, text, x, spanS, words };
  if (figure.at === undefined) figure.querySelector("span").textContent = words;
  else read(figure);
}

const told = (v, text) => (v === null || v === undefined ? "–" : text(v));

// read shows the values of the look that the figure points at.
function read(figure) {
  const { ages, lines, text, x } = figure.data;
  const drawing = figure.querySelector("svg");
  const mark = drawing.querySelector(".mark");
  if (mark) mark.remove();
  const i = Math.max(0, Math.min(ages.length - 1, figure.at));
  if (!ages.length) return;
  drawing.append(svg("line", { class: "mark", x1: x(ages[i]), x2: x(ages[i]), y1: top, y2: bottom }));
  const values = lines.map((l) => told(l.values[i], text)).join(", ");
  figure.querySelector("span").textContent = `${values}, ${duration(ages[i])} ago`;
}

function reads(figure) {
  const point = (at) => {
    figure.at = at;
    figure.querySelector("span").setAttribute("aria-live", "polite");
    read(figure);
  };
  const leave = () => {
    figure.at = undefined;
    const mark = figure.querySelector(".mark");
    if (mark) mark.remove();
    const span = figure.querySelector("span");
    span.setAttribute("aria-live", "off");
    span.textContent = figure.data.words;
  };
  figure.addEventListener("keydown", (event) => {
    const last = figure.data.ages.length - 1;
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -30, PageDown: 30 }[event.key];
    if (step) {
      event.preventDefault();
      point(Math.max(0, Math.min(last, (figure.at === undefined ? last : figure.at) + step)));
    } else if (event.key === "Escape") leave();
  });
  figure.addEventListener("blur", leave);
  const drawing = figure.querySelector("svg");
  drawing.addEventListener("pointermove", (event) => {
    const box = drawing.getBoundingClientRect();
    const age = (figure.data.spanS * (right - ((event.clientX - box.left) / box.width) * width)) / (right - left);
    const { ages } = figure.data;
    let best = 0;
    ages.forEach((a, i) => Math.abs(a - age) < Math.abs(ages[best] - age) && (best = i));
    point(best);
  });
  drawing.addEventListener("pointerleave", leave);
}
