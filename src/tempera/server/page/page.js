// The page of `tempera serve`: it asks the server that it came from, and shows the answers.
//
// Whatever comes from a run (texts, names, ids, columns, messages) is foreign: it reaches the page
// as text nodes alone, by `visible` or `marked`, never as markup, and a link is http or https.

const WAYS = {
  vectors: { title: "Vectors", subtitle: "close in meaning, even in other words", hybrid: false },
  words: { title: "Words", subtitle: "the same words, names and numbers (BM25)", hybrid: "words" },
  both: { title: "Both", subtitle: "the scores of vectors and words, added", hybrid: true },
};
const SHORT_TEXT = 500; // letters of a text that is not opened
const SHORT_NAME = 200;
const SHORT_TITLE = 60; // letters of a text that stands as a title
const SHORT_VALUE = 120;
const SHOWN_COLUMNS = 4; // kept columns of a hit that is not opened
const SHOWN_PARTS = 8; // parts of an explanation, the largest first
const SHOWN_EVENTS = { wide: 12, narrow: 4 }; // of a history, the latest first
const LONGEST_WAIT = 30; // seconds before a busy server is asked again

const at = (id) => document.getElementById(id);
const narrow = matchMedia("(max-width: 760px)");

// The state of the page, which the address keeps behind its #.
const state = {
  world: "search",
  query: "",
  columns: [], // such as "faq:vectors"; empty for those of the first run
  k: 10,
  where: "",
  threshold: 0,
  user: "",
  run: "",
  history: null, // ids, if edited
};
let models = [];
let token = ""; // in memory alone
let columns = []; // columns of hits on the page
let made = 0; // number of columns made, for their ids
let current = 0; // number of the column that narrow screens show

// ---- Elements and foreign texts ----

/** An element with attributes (functions listen to events) and children (nodes or texts). */
function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(key, value);
    else if (value === true) node.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined)
      node.setAttribute(key, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** A button that does something. */
function button(label, click, attributes = {}) {
  return element("button", { type: "button", click, ...attributes }, label);
}

// Characters that hide or reorder others: controls, directions, zero widths, tags, lone surrogates.
const ODD = new RegExp(
  "[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u061c\\u115f\\u1160\\u180e" +
    "\\u200b-\\u200f\\u2028-\\u202e" +
    "\\u2060-\\u206f\\u3164\\ufeff\\uffa0\\ufff9-\\ufffb\\u{e0000}-\\u{e0fff}\\ud800-\\udfff]",
  "gu",
);
const JOINERS = "\u200c\u200d"; // belong to emoji and to some scripts; odd beside Latin letters

/** Text as a node in a direction of its own; odd characters are shown by their numbers. */
function visible(text, mark = plain) {
  const node = element("bdi");
  const content = String(text);
  let start = 0;
  for (const match of content.matchAll(ODD)) {
    const before = content[match.index - 1] ?? "a";
    if (JOINERS.includes(match[0]) && before > "\u024f") continue;
    if (match[0] === "\r" && content[match.index + 1] === "\n") continue;
    node.append(...mark(content.slice(start, match.index)));
    const number = match[0].codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    node.append(element("span", { class: "odd" }, `U+${number}`));
    start = match.index + match[0].length;
  }
  node.append(...mark(content.slice(start)));
  return node;
}

function plain(text) {
  return text ? [document.createTextNode(text)] : [];
}

/** The first letters of a text. */
function beginning(text, letters) {
  const content = String(text ?? "");
  if (content.length <= letters) return content;
  return `${content.slice(0, letters).replace(/[\ud800-\udbff]$/, "")} …`;
}

// A word as BM25 has it: letters or digits, split where the case changes.
const WORD = /\p{N}+|\p{Lu}+(?!\p{Ll})|\p{Lu}?[\p{Ll}\p{Lo}\p{Lm}\p{M}]+|\p{Lu}+/gu;
const COMMON = new Set(
  (
    "a an and are as at be but by can could did do does for from had has have how i if in into " +
    "is it its me my no not of on or our so that the their there they this to was we what when " +
    "where which who why will with would you your"
  ).split(" "),
);

/** A word without one of the usual English endings. */
function stem(word) {
  const lower = word.toLowerCase();
  const shorter = lower.replace(/(?:ies|ing|ed|es|s|y|e)$/u, "");
  return shorter.length >= 3 ? shorter : lower;
}

/** The weight (0 to 1) of each stem of a query, to mark them in texts. */
function weightsOf(query) {
  const words = query.match(WORD) ?? [];
  const telling = words.filter((word) => !COMMON.has(word.toLowerCase()));
  return new Map((telling.length ? telling : words).map((word) => [stem(word), 1]));
}

/** A function that cuts a text into nodes, with words of some weight in <mark>. */
function marked(weights) {
  return (text) => {
    const nodes = [];
    let end = 0;
    for (const place of weighted(text, weights)) {
      const mark = element(
        "mark",
        { class: place.weight < 1 ? "heat" : null },
        text.slice(place.start, place.end),
      );
      mark.style.setProperty("--heat", place.weight);
      nodes.push(...plain(text.slice(end, place.start)), mark);
      end = place.end;
    }
    nodes.push(...plain(text.slice(end)));
    return nodes;
  };
}

/** The places of a text's words with a weight; the parts of a name such as KV-822 are one place. */
function weighted(text, weights) {
  const places = [];
  for (const match of weights.size ? text.matchAll(WORD) : []) {
    const weight = weights.get(stem(match[0]));
    if (!weight) continue;
    const last = places.at(-1);
    if (last && /^[-_./]?$/.test(text.slice(last.end, match.index))) {
      last.end = match.index + match[0].length;
      last.weight = Math.max(last.weight, weight);
    } else {
      places.push({ start: match.index, end: match.index + match[0].length, weight });
    }
  }
  return places;
}

/** A value of a column: a link if it is an address of the web, else text. */
function shownValue(value, letters) {
  const text = typeof value === "object" ? JSON.stringify(value) : String(value);
  const address = linkOf(text);
  if (address === null) return visible(beginning(text, letters));
  const rest = decoded(`${address.pathname}${address.search}${address.hash}`);
  const options = { href: address.href, target: "_blank", rel: "noopener noreferrer nofollow" };
  return element(
    "a",
    options,
    visible(beginning(address.host + (rest === "/" ? "" : rest), letters)),
  );
}

function decoded(path) {
  try {
    return decodeURI(path);
  } catch {
    return path;
  }
}

/** The address that a text is, or null, also for one that a user's name makes look like another. */
function linkOf(text) {
  if (!/^https?:\/\/\S+$/i.test(text) || !URL.canParse(text)) return null;
  const address = new URL(text);
  const isWeb = address.protocol === "https:" || address.protocol === "http:";
  return isWeb && !address.username && !address.password ? address : null;
}

function number(value, digits = 3) {
  if (typeof value !== "number" || !Number.isFinite(value)) return "–";
  const shown = value.toFixed(Math.abs(value) >= 1000 ? 0 : digits);
  return shown.replace("-", Number(shown) === 0 ? "" : "−");
}

function count(amount, one, many) {
  return `${amount.toLocaleString("en")} ${amount === 1 ? one : many}`;
}

function capital(text) {
  return `${text.slice(0, 1).toUpperCase()}${text.slice(1)}`;
}

/** A number of an order, such as 2nd. */
function ordinal(place) {
  const endings = { one: "st", two: "nd", few: "rd", other: "th" };
  return `${place}${endings[new Intl.PluralRules("en", { type: "ordinal" }).select(place)]}`;
}

function percent(share) {
  if (share > 0 && share < 0.01) return "< 1 %";
  if (share > 0.99 && share < 1) return "> 99 %";
  return `${Math.round(share * 100)} %`;
}

/** A drawing of shapes, each with its attributes. */
function drawing(box, shapes) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", box);
  svg.setAttribute("aria-hidden", "true");
  for (const [name, attributes] of shapes) {
    const shape = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) shape.setAttribute(key, value);
    svg.append(shape);
  }
  return svg;
}

/** Say something to those who do not see the page. */
function say(text) {
  at("said").textContent = text;
}

function show(id, text) {
  at(id).hidden = !text;
  at(id).replaceChildren(...(text ? [visible(text)] : []));
}

// ---- The server ----

/** A refusal, as one line for the reader. */
class Trouble extends Error {}

/** The answer to a request, and the milliseconds it took here and in the server. */
async function ask(path, body, signal, isAgain = false) {
  const options = {
    signal,
    headers: { Accept: "application/json" },
    cache: "no-store",
    redirect: "error",
  };
  if (token) options.headers.Authorization = `Bearer ${token}`;
  if (body !== undefined) {
    options.method = "POST";
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  const begin = performance.now();
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Trouble("The server does not answer. Is it still running?");
  }
  if (response.status === 429 && !isAgain) {
    await pause(Number(response.headers.get("Retry-After")), signal);
    return ask(path, body, signal, true);
  }
  const answer = await response.json().catch(() => null);
  const milliseconds = performance.now() - begin;
  if (response.status === 401) {
    at("token-form").hidden = false;
    at("token").focus();
    throw new Trouble(token ? "The server does not know this token." : "");
  }
  if (!response.ok || answer === null) {
    throw new Trouble(
      answer?.error?.message ?? `The server answered with status ${response.status}.`,
    );
  }
  const timing = /dur=([\d.]+)/.exec(response.headers.get("Server-Timing") ?? "");
  return { answer, milliseconds, inServer: timing ? Number(timing[1]) : null };
}

/** Wait as long as a busy server wishes, and say so. */
async function pause(seconds, signal) {
  const wait = Math.min(Number.isFinite(seconds) && seconds > 0 ? seconds : 1, LONGEST_WAIT);
  show("waiting", `The server is busy; asking again in ${wait} s.`);
  await new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, wait * 1000);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    });
  }).finally(() => show("waiting", ""));
}

// ---- The address ----

function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  state.world =
    given.has("user") || given.has("history") || given.has("run") ? "recommend" : "search";
  if (!given.size && !textModels().length) state.world = "recommend";
  state.query = given.get("q") ?? "";
  state.columns = given.getAll("in");
  state.k = Math.min(Math.max(Math.round(Number(given.get("k"))) || 10, 1), 1000);
  state.where = given.get("where") ?? "";
  state.threshold = Math.min(Math.max(Number(given.get("from")) || 0, 0), 100);
  state.user = given.get("user") ?? "";
  state.run = given.get("run") ?? "";
  state.history = given.has("history")
    ? given.getAll("history").filter((item) => item !== "")
    : null;
}

function writeAddress(isNew) {
  const given = new URLSearchParams();
  if (state.world === "search") {
    if (state.query) given.set("q", state.query);
    for (const column of state.columns) given.append("in", column);
    if (state.threshold) given.set("from", state.threshold);
  } else {
    given.set("run", recommenderOf().id);
    if (state.user !== "") given.set("user", state.user);
    for (const item of state.history ?? []) given.append("history", item);
    if (state.history && !state.history.length) given.set("history", "");
  }
  if (state.k !== 10) given.set("k", state.k);
  if (state.where) given.set("where", state.where);
  const hash = given.size ? `#${given}` : location.pathname;
  if (hash === location.hash || (hash === location.pathname && !location.hash)) return;
  if (isNew) history.pushState(null, "", hash);
  else history.replaceState(null, "", hash);
}

// ---- A column of hits ----

/**
 * A column: a heading, and the hits of one request.
 *
 * `place` has key, title, subtitle, of (the name of the run, or ""), short (for chips), and
 * `request()`, which gives the path and the body to ask with.
 */
function makeColumn(place) {
  made += 1;
  const titleId = `title-${made}`;
  const took = element("span", { class: "took" });
  const legend = element("span", { class: "legend" });
  const header = element(
    "header",
    {},
    place.of ? element("span", { class: "of" }, visible(place.of)) : null,
    element("div", { class: "heading" }, element("h2", { id: titleId }, place.title), took),
    element("div", { class: "below" }, element("p", { class: "subtitle" }, place.subtitle), legend),
  );
  const notes = element("div");
  const list = element("ol", { class: "hits", "aria-labelledby": titleId });
  const leftOut = element("p", { class: "left-out", hidden: true });
  const attributes = { class: "column", "aria-labelledby": titleId };
  const section = element("section", attributes, header, notes, list, leftOut);
  const nodes = { section, notes, list, leftOut, took, legend };
  // The request that is or was asked, the hits of its answer, and their reasons.
  const asking = { asked: "", control: null, pending: null, hits: [], reasons: null, trouble: "" };
  return { ...place, ...nodes, ...asking };
}

/** Show the hits of a column; ask for them if they are not there, nor on their way. */
function fill(column) {
  const [path, body] = column.request();
  const asked = JSON.stringify([path, body]);
  if (asked === column.asked) return column.pending;
  column.control?.abort();
  column.control = new AbortController();
  column.asked = asked;
  column.pending = askHits(column, path, body);
  return column.pending;
}

async function askHits(column, path, body) {
  column.section.setAttribute("aria-busy", "true");
  if (!column.hits.length) {
    column.notes.replaceChildren();
    const waiting = () => element("li", { class: "waiting-hit", "aria-hidden": "true" });
    column.list.replaceChildren(waiting(), waiting(), waiting());
  }
  try {
    const { answer, milliseconds, inServer } = await ask(path, body, column.control.signal);
    column.answer = answer;
    column.reasons = null;
    column.trouble = "";
    const found = hitsOf(column, answer);
    const isCalibrated = found.some((hit) => typeof hit.probability === "number");
    column.legend.textContent = isCalibrated ? "score, probability" : "score";
    column.took.textContent = `${milliseconds.toFixed(milliseconds < 10 ? 1 : 0)} ms`;
    if (inServer !== null)
      column.took.title = `seen from here; ${inServer.toFixed(1)} ms in the server`;
    column.notes.replaceChildren(...notesOf(answer));
    drawHits(column, found);
  } catch (error) {
    if (error.name === "AbortError") return;
    column.asked = "";
    column.took.textContent = "";
    column.legend.textContent = "";
    column.hits = [];
    column.list.replaceChildren();
    column.leftOut.hidden = true;
    const line =
      error instanceof Trouble ? error.message : `The answer cannot be shown: ${error.message}`;
    column.trouble = line;
    column.notes.replaceChildren(
      ...(line ? [element("p", { class: "trouble" }, visible(line))] : []),
    );
    say(line);
  }
  column.section.removeAttribute("aria-busy");
}

/** The hits of an answer; of a search by words, those that share one. */
function hitsOf(column, answer) {
  const found = Array.isArray(answer.results?.[0]) ? answer.results[0] : (answer.results ?? []);
  return column.isByWords ? found.filter((hit) => hit.score > 0) : found;
}

function notesOf(answer) {
  const notes = [...new Set(answer.notes ?? [])];
  return notes.map((note) => element("p", { class: "note" }, visible(note)));
}

function drawHits(column, found) {
  const largest = Math.max(
    ...found.map((hit) => Math.abs(hit.score)).filter(Number.isFinite),
    1e-12,
  );
  const weights = column.query ? weightsOf(column.query()) : new Map();
  column.hits = found.map((data, position) =>
    makeHit(column, data, position + 1, largest, weights),
  );
  let reason = column.isByWords ? "No document shares a word with the query." : "No hits.";
  if (state.where) reason = "Nothing passes the filter.";
  const nothing = element("li", { class: "nothing" }, reason);
  column.list.replaceChildren(...(found.length ? column.hits.map((hit) => hit.node) : [nothing]));
}

/** The title of a hit and the text below it: its name, or its first line if more lines follow. */
function titleAndText(data) {
  const text = String(data.text ?? "").trim();
  const name = String(data.name ?? "").trim();
  if (name && name !== text) {
    const rest = text.startsWith(name) ? text.slice(name.length) : "";
    const isRepeated = /^[.:]?\s*\n|^[.:]\s/.test(rest); // a heading above the text
    return { title: name, text: isRepeated ? rest.replace(/^[\s.:]+/, "") : text, isPlain: false };
  }
  const end = text.indexOf("\n");
  if (end > 0 && end <= SHORT_NAME)
    return { title: text.slice(0, end), text: text.slice(end).trim(), isPlain: false };
  return { title: text || String(data.id), text: "", isPlain: text.length > SHORT_TITLE };
}

function makeHit(column, data, rank, largest, weights) {
  const { title, text, isPlain } = titleAndText(data);
  const hit = { column, data, rank, title, text, isPlain, weights, isWhole: false };
  hit.heading = element("h3", { class: isPlain ? "title plain" : "title" });
  hit.body = element("p", { class: "text", hidden: !text });
  hit.kept = element("dl", { class: "kept" });
  hit.also = element("span", { class: "also" });
  hit.reason = element("div", { class: "reason", hidden: true });
  hit.place = element("span", { class: "place" });
  hit.more = button("More", () => toggleWhole(hit), { "aria-expanded": "false" });
  hit.why = button("Why", () => toggleReason(hit), { "aria-expanded": "false" });
  const isCalibrated = typeof data.probability === "number";
  const value = element(
    "span",
    { class: "value" },
    element("span", { title: "score" }, number(data.score)),
  );
  if (isCalibrated)
    value.append(
      element("b", { title: "probability of being an answer" }, percent(data.probability)),
    );
  const share = element("span");
  share.style.setProperty("--share", Math.max(data.score, 0) / largest || 0);
  const bar = element("div", { class: "bar", "aria-hidden": "true" }, share);
  const actions = element("span", { class: "do" }, hit.more, column.take?.(data), hit.why);
  const light = () => lightTwins(hit, true);
  const dim = () => lightTwins(hit, false);
  hit.node = element(
    "li",
    {
      class: "hit",
      tabindex: "-1",
      mouseenter: light,
      focusin: light,
      mouseleave: dim,
      focusout: dim,
    },
    element(
      "div",
      { class: "head" },
      element("span", { class: "rank" }, String(rank)),
      hit.heading,
      value,
    ),
    bar,
    hit.body,
    element(
      "div",
      { class: text ? "below-text" : "below-text brief" },
      hit.kept,
      element("div", { class: "foot" }, hit.place, hit.also, actions),
    ),
    hit.reason,
  );
  drawTexts(hit);
  return hit;
}

/** Draw the texts of a hit, shortened or whole. */
function drawTexts(hit) {
  const { data, isWhole } = hit;
  const mark = marked(hit.weights);
  const short = hit.isPlain ? SHORT_TEXT : SHORT_NAME;
  hit.heading.replaceChildren(visible(isWhole ? hit.title : beginning(hit.title, short), mark));
  hit.body.replaceChildren(visible(isWhole ? hit.text : beginning(hit.text, SHORT_TEXT), mark));
  const values = Object.entries(data.columns ?? {}).filter(
    ([, value]) => value !== null && value !== "",
  );
  const rows = values.map(([name, value], position) =>
    element(
      "div",
      { class: position >= SHOWN_COLUMNS ? "further" : null },
      element("dt", {}, visible(isWhole ? name : beginning(name, 40))),
      element("dd", {}, shownValue(value, isWhole ? Infinity : SHORT_VALUE)),
    ),
  );
  if (isWhole)
    rows.push(element("div", {}, element("dt", {}, "id"), element("dd", {}, visible(data.id))));
  hit.kept.hidden = !rows.length;
  hit.kept.replaceChildren(...rows);
  const place = data.place || (hit.column.showsIds ? data.id : "");
  hit.place.replaceChildren(visible(isWhole ? place : beginning(place, SHORT_VALUE)));
  hit.node.classList.toggle("whole", isWhole);
  hit.more.textContent = isWhole ? "Less" : "More";
  hit.more.setAttribute("aria-expanded", String(isWhole));
  hit.more.setAttribute("aria-label", `${hit.more.textContent} of hit ${hit.rank}`);
  hit.why.setAttribute("aria-label", `Why hit ${hit.rank}`);
}

function toggleWhole(hit) {
  hit.isWhole = !hit.isWhole;
  drawTexts(hit);
}

// ---- One document in several columns ----

/** Show in each hit the ranks that its document has in the other columns. */
function linkTwins() {
  const places = new Map();
  for (const column of columns) {
    for (const hit of column.hits) {
      const id = JSON.stringify(hit.data.id);
      places.set(id, [...(places.get(id) ?? []), hit]);
    }
  }
  const others = columns.filter((column) => column.hits.length).length > 1;
  for (const hits of places.values()) {
    for (const hit of hits) {
      hit.twins = hits.filter((other) => other !== hit);
      const chips = hit.twins.map((twin) =>
        element("span", {}, `${twin.column.short} ${twin.rank}`),
      );
      if (!chips.length && others) chips.push(element("span", {}, "only here"));
      hit.also.replaceChildren(...chips);
    }
  }
}

function lightTwins(hit, isEntered) {
  const isLit = isEntered || hit.node.matches(":hover, :focus-within");
  for (const twin of hit.twins ?? []) {
    twin.node.classList.toggle("twin", isLit);
    hit.node.classList.toggle("twin", isLit);
  }
}

/** Hide hits below the threshold where probabilities are known, and say how many. */
function applyThreshold() {
  for (const column of columns) {
    let hidden = 0;
    for (const hit of column.hits) {
      const { probability } = hit.data;
      if (typeof probability !== "number") continue;
      hit.node.hidden = probability < state.threshold / 100;
      if (hit.node.hidden) hidden += 1;
    }
    column.leftOut.hidden = !hidden;
    const hits = count(hidden, "hit", "hits");
    column.leftOut.textContent = `${hits} below ${state.threshold} % left out`;
  }
  const calibrated = models
    .filter((model) => model.calibrated)
    .map((model) => `${model.id}:vectors`);
  at("threshold-setting").hidden = !chosenColumns().some((key) => calibrated.includes(key));
  at("threshold").value = state.threshold;
  at("threshold-value").textContent = `${state.threshold} %`;
}

// ---- Reasons ----

const KINDS = {
  tokens: ["Words of the query and of the text", "what each pair of words adds to the score"],
  words: ["Words that are in both", "rare words count more, repeated ones a little more"],
  fused: ["Two scores together", "weight × (score − mean of all documents) / standard deviation"],
  events: ["What was taken before", "what each past item adds to the score"],
  leave_one_out: ["Without each word", "how much lower the score would be"],
};

/** Open or close the reason of a hit; the first one of a column asks for all of them. */
async function toggleReason(hit) {
  const isOpen = hit.reason.hidden;
  hit.reason.hidden = !isOpen;
  hit.why.setAttribute("aria-expanded", String(isOpen));
  if (!isOpen) {
    hit.weights = hit.column.query ? weightsOf(hit.column.query()) : new Map();
    drawTexts(hit);
    return;
  }
  if (!hit.reason.childElementCount)
    hit.reason.append(element("p", { class: "subtitle" }, "Asking why …"));
  const { column } = hit;
  try {
    column.reasons ??= reasonsOf(column);
    const reasons = await column.reasons;
    const explanation = reasons.get(JSON.stringify(hit.data.id));
    if (!explanation) throw new Trouble("The server gives no reason for this hit.");
    hit.reason.replaceChildren(...drawReason(explanation));
    if (!hit.reason.hidden && column.query) {
      hit.weights = heatOf(explanation, column.query());
      drawTexts(hit);
    }
    say(`Why hit ${hit.rank}: opened`);
  } catch (error) {
    column.reasons = null;
    if (error.name === "AbortError") return;
    hit.reason.replaceChildren(
      element("p", { class: "trouble", role: "alert" }, visible(error.message)),
    );
  }
}

async function reasonsOf(column) {
  const [path, body] = column.request();
  const { answer } = await ask(path, { ...body, explain: true }, column.control.signal);
  return new Map(hitsOf(column, answer).map((hit) => [JSON.stringify(hit.id), hit.explanation]));
}

/** The weight of each stem of a text by what it adds to the score; those of the query if none. */
function heatOf(explanation, query) {
  const sums = new Map();
  for (const part of explanation.parts ?? []) {
    const word = part.document_token ?? part.word;
    if (word === undefined || part.side === "document" || part.value <= 0) continue;
    for (const piece of String(word).match(WORD) ?? []) {
      const key = stem(piece);
      sums.set(key, (sums.get(key) ?? 0) + part.value);
    }
  }
  const largest = Math.max(...sums.values(), 0);
  if (!largest) return weightsOf(query);
  const weights = new Map();
  for (const [word, sum] of sums) {
    if (sum > 0.05 * largest) weights.set(word, Math.min(sum / largest, 0.999));
  }
  return weights;
}

/** The parts of a reason; of a fused score, its systems, standardised over all documents. */
function partsOf(explanation) {
  if (!explanation.explanations) return explanation.parts ?? [];
  return explanation.explanations.map((half) => {
    const factor = half.deviation ? half.weight / half.deviation : 0;
    return { ...half, label: half.system, value: factor * (half.explanation.score - half.mean) };
  });
}

/** An explanation as nodes: a table of parts that ends with their sum, and those of its parts. */
function drawReason(explanation, title = null) {
  let [heading, subtitle] = KINDS[explanation.kind] ?? ["Parts of the score", ""];
  if (explanation.explanations) {
    const systems = explanation.explanations.map((half) => half.system).join(" and ");
    heading = `${capital(systems)} together`;
  }
  const below = title ? heading : subtitle;
  const nodes = [element("h4", {}, title ?? heading), element("p", { class: "subtitle" }, below)];
  if (explanation.exact === false) {
    const text = "An approximation: these parts do not cause the score exactly.";
    nodes.push(element("p", { class: "approximate" }, text));
  }
  if (!explanation.explanations) nodes.push(...notesOf(explanation));
  nodes.push(partTable(explanation));
  for (const part of partsOf(explanation)) {
    if (part.explanation) {
      const inner = drawReason(part.explanation, capital(part.label));
      nodes.push(element("div", { class: "part" }, ...inner));
    }
  }
  return nodes;
}

function partTable(explanation, isWhole = false) {
  const every = partsOf(explanation);
  const parts = explanation.kind === "fused" ? [...every] : every.filter((part) => part.value);
  if (explanation.kind !== "fused")
    parts.sort((one, other) => Math.abs(other.value) - Math.abs(one.value));
  const shown = isWhole ? parts : parts.slice(0, SHOWN_PARTS);
  const further = parts.slice(shown.length);
  const values = shown.map((part) => part.value);
  const low = Math.min(0, ...values);
  const range = Math.max(0, ...values) - low || 1;
  const rows = shown.map((part) => partRow(partLabel(part), part.value, low, range));
  const widths = ["label", "", "number"].map((kind) => element("col", { class: kind }));
  const table = element(
    "table",
    { class: `by-${explanation.kind}` },
    element("caption", { class: "unseen" }, "Parts of the score"),
    element("colgroup", {}, ...widths),
  );
  if (further.length) {
    const label = count(further.length, "smaller part", "smaller parts");
    const open = button(label, () => table.replaceWith(partTable(explanation, true)), {
      class: "link",
    });
    rows.push(
      partRow(
        open,
        further.reduce((sum, part) => sum + part.value, 0),
        null,
        1,
        "rest",
      ),
    );
  }
  const rest = explanation.score - parts.reduce((sum, part) => sum + part.value, 0);
  if (Math.abs(rest) >= 5e-6)
    rows.push(partRow(REST[explanation.kind] ?? "everything else", rest, null, 1, "rest"));
  rows.push(partRow("score", explanation.score, null, 1, "sum"));
  table.append(element("tbody", {}, ...rows));
  const absent = explanation.kind === "words" ? every.filter((part) => !part.value) : [];
  if (!absent.length) return table;
  const names = absent.map((part) => part.word).join(", ");
  const named = visible(beginning(names, SHORT_TEXT));
  const line = element("p", { class: "subtitle" }, "Not in this document: ", named);
  return element("div", {}, table, line);
}

const REST = { events: "apart from the history", leave_one_out: "not by one word alone" };

function partLabel(part) {
  const tokens = [part.query_token, part.document_token].filter((each) => each !== undefined);
  if (tokens.length === 2) {
    const arrow = element("span", { class: "to" }, "→");
    return element("span", {}, visible(tokens[0]), arrow, visible(tokens[1]));
  }
  const names = [tokens[0], part.label, part.word, part.name || part.event, part.feature];
  const name = names.find((each) => each !== undefined) ?? "";
  const label = visible(beginning(name, SHORT_VALUE));
  let detail = "";
  if (part.explanation) {
    const sign = part.mean < 0 ? "+" : "−";
    const difference = `(${number(part.explanation.score)} ${sign} ${number(Math.abs(part.mean))})`;
    const standard = `${difference} / ${number(part.deviation)}`;
    detail = `${number(part.weight, 2)} × ${part.deviation ? standard : "0 (equal scores)"}`;
  } else if (part.documents !== undefined)
    detail = `in ${count(part.documents, "document", "documents")}`;
  else if (part.side === "document") detail = "in the text";
  else if (part.place === 1) detail = "the latest";
  else if (part.place !== undefined) detail = `the ${ordinal(part.place)} latest`;
  else if (part.of !== undefined) detail = `feature of the ${part.of}`;
  return element("span", {}, label, detail ? element("small", {}, detail) : null);
}

function partRow(label, value, low, range, kind = null) {
  const cell = element("td", { "aria-hidden": "true" });
  if (low !== null) {
    const bar = element("span");
    bar.style.setProperty("--from", (Math.min(value, 0) - low) / range);
    bar.style.setProperty("--size", Math.abs(value) / range);
    cell.append(element("div", { class: value < 0 ? "balance negative" : "balance" }, bar));
  }
  const name = element("th", { scope: "row" }, label);
  return element(
    "tr",
    { class: kind },
    name,
    cell,
    element("td", { class: "number" }, number(value)),
  );
}

// ---- Search ----

function textModels() {
  return models.filter((model) => model.kind !== "recommender");
}

function waysOf(model) {
  return model.hybrid ? ["vectors", "words", "both"] : ["vectors"];
}

/** The columns to show: those of the address that exist, else all of the first run. */
function chosenColumns() {
  const every = textModels().flatMap((model) => waysOf(model).map((way) => `${model.id}:${way}`));
  const chosen = every.filter((key) => state.columns.includes(key));
  const first = textModels()[0];
  return chosen.length ? chosen : waysOf(first).map((way) => `${first.id}:${way}`);
}

function drawWays() {
  const chosen = chosenColumns();
  const isAlone = textModels().length === 1;
  const groups = textModels().map((model) => {
    const boxes = waysOf(model).map((way) => {
      const box = element("input", {
        type: "checkbox",
        value: `${model.id}:${way}`,
        change: changeWays,
      });
      box.checked = chosen.includes(box.value);
      return element("label", { class: "way" }, box, WAYS[way].title);
    });
    return element(
      "fieldset",
      {},
      element("legend", {}, isAlone ? "Compare" : visible(model.id)),
      ...boxes,
    );
  });
  at("ways").replaceChildren(...groups);
}

function changeWays() {
  const boxes = [...at("ways").querySelectorAll("input")];
  state.columns = boxes.filter((box) => box.checked).map((box) => box.value);
  if (!state.columns.length) drawWays();
  writeAddress(true);
  search();
}

function columnOf(key, isAlone) {
  const split = key.lastIndexOf(":");
  const model = key.slice(0, split);
  const way = WAYS[key.slice(split + 1)];
  return makeColumn({
    key,
    isByWords: way === WAYS.words,
    title: way.title,
    subtitle: way.subtitle,
    of: isAlone ? "" : model,
    short: isAlone ? way.title : `${beginning(model, 24)} ${way.title.toLowerCase()}`,
    query: () => state.query,
    request: () => [
      "v1/search",
      { query: state.query, k: state.k, hybrid: way.hybrid, model, ...filter() },
    ],
  });
}

/** The filter as part of a request, if there is one. */
function filter() {
  return state.where ? { where: state.where } : {};
}

/** Ask for every chosen column, and show them side by side. */
async function search() {
  if (!state.query) {
    columns.forEach((column) => column.control?.abort());
    columns = [];
    at("tabs").hidden = true;
    at("columns").replaceChildren(explained());
    applyThreshold();
    return;
  }
  document.title = `${beginning(state.query, 60)} · Tempera`;
  const chosen = chosenColumns();
  const isAlone = new Set(chosen.map((key) => key.slice(0, key.lastIndexOf(":")))).size === 1;
  const before = new Map(columns.map((column) => [`${column.key} ${column.of}`, column]));
  const next = chosen.map((key) => {
    const fresh = columnOf(key, isAlone);
    return before.get(`${key} ${fresh.of}`) ?? fresh;
  });
  columns.filter((column) => !next.includes(column)).forEach((column) => column.control?.abort());
  columns = next;
  current = Math.min(current, columns.length - 1);
  at("columns").replaceChildren(...columns.map((column) => column.section));
  drawTabs();
  const asked = columns;
  await Promise.all(
    asked.map(async (column) => {
      await fill(column);
      linkTwins();
      applyThreshold();
    }),
  );
  if (asked !== columns) return;
  const [{ trouble }] = columns;
  if (trouble && columns.every((column) => column.trouble === trouble)) {
    at("columns").replaceChildren(element("p", { class: "trouble" }, visible(trouble)));
    at("tabs").hidden = true;
  } else {
    const counts = columns.map((column) => `${column.title} ${column.hits.length}`).join(", ");
    say(`Hits: ${counts}`);
  }
}

/** Pictures and sentences for those who see the page for the first time. */
function explained() {
  const pictures = {
    vectors: [
      ["path", { d: "M5 14L24 6M5 14l28 8" }],
      ["circle", { cx: 5, cy: 14, r: 5, class: "full" }],
      ["circle", { cx: 24, cy: 6, r: 5, class: "pale" }],
      ["circle", { cx: 34, cy: 22, r: 5, class: "pale" }],
    ],
    words: [
      ["rect", { x: 18, y: 2, width: 16, height: 10, rx: 3, class: "pale" }],
      ["rect", { x: 10, y: 16, width: 16, height: 10, rx: 3, class: "pale" }],
      ["path", { d: "M2 7h12M22 7h8M2 21h4M14 21h8M30 21h10" }],
    ],
    both: [
      ["circle", { cx: 12, cy: 14, r: 10 }],
      ["circle", { cx: 25, cy: 14, r: 10 }],
    ],
  };
  const sentences = {
    vectors:
      "The trained model compares meanings: it finds an answer that shares no word with the query.",
    words: "BM25 compares words: it finds names, numbers and rare terms as they are written.",
    both: "The scores of vectors and words are added, with the weight that the run chose.",
  };
  const shown = textModels().some((model) => model.hybrid) ? Object.keys(sentences) : ["vectors"];
  const cards = shown.map((way) => {
    const picture = drawing("0 0 44 28", pictures[way]);
    const title = element("h2", {}, WAYS[way].title);
    return element("section", {}, picture, title, element("p", {}, sentences[way]));
  });
  return element("div", { class: "ways-explained" }, ...cards);
}

/** Columns become tabs on narrow screens. */
function drawTabs() {
  const hasTabs = narrow.matches && columns.length > 1;
  at("tabs").hidden = !hasTabs;
  at("columns").classList.toggle("tabbed", hasTabs);
  const tabs = columns.map((column, position) => {
    const name = column.of
      ? element("span", {}, visible(beginning(column.of, 20)), ` · ${column.title}`)
      : column.title;
    const isCurrent = position === current;
    column.section.id = `panel-${position}`;
    column.section.classList.toggle("current", isCurrent);
    if (hasTabs) column.section.setAttribute("role", "tabpanel");
    else column.section.removeAttribute("role");
    return button(name, () => changeTab(position), {
      role: "tab",
      "aria-selected": String(isCurrent),
      "aria-controls": column.section.id,
      tabindex: isCurrent ? "0" : "-1",
    });
  });
  at("tabs").replaceChildren(...tabs);
}

function changeTab(position) {
  current = (position + columns.length) % columns.length;
  drawTabs();
  at("tabs").children[current]?.focus();
}

/** The names of kept columns, each a button that writes itself into the filter. */
function drawFilter(details, input, names, model) {
  const kept = (model?.columns ?? []).map((column) => column.name ?? column);
  details.hidden = !kept.length && !state.where;
  if (state.where) details.open = true;
  input.value = state.where;
  const buttons = kept.map((name) => {
    const write = () => {
      const isPlain = /^[A-Za-z_]\w*$/.test(name);
      const written = isPlain ? name : `"${name.replaceAll('"', '""')}"`;
      input.setRangeText(written, input.selectionStart, input.selectionEnd, "end");
      input.focus();
    };
    return button(visible(beginning(name, 60)), write);
  });
  names.replaceChildren(...(kept.length ? ["Columns: ", ...buttons] : []));
}

function drawSearch() {
  const documents = textModels()[0].documents;
  const title = documents ? `Search ${count(documents, "document", "documents")}` : "Search";
  at("search-title").textContent = title;
  at("query").value = state.query;
  choose(at("depth"), state.k);
  drawWays();
  drawFilter(at("filter"), at("where"), at("column-names"), textModels()[0]);
  search();
}

/** Set a selector to a number, which may come from an address and be none of its options. */
function choose(selector, value) {
  if (![...selector.options].some((option) => option.value === String(value))) {
    selector.append(element("option", {}, String(value)));
  }
  selector.value = String(value);
}

// ---- Recommend ----

function recommenders() {
  return models.filter((model) => model.kind === "recommender");
}

function recommenderOf() {
  return recommenders().find((model) => model.id === state.run) ?? recommenders()[0];
}

let suggestions = []; // users that begin with what was typed
let active = -1;
let suggesting = null; // the request for them

/** Show the users that begin with what was typed. */
async function suggest() {
  suggesting?.abort();
  suggesting = new AbortController();
  const given = new URLSearchParams({
    prefix: at("user").value,
    limit: 8,
    model: recommenderOf().id,
  });
  try {
    const { answer } = await ask(`v1/users?${given}`, undefined, suggesting.signal);
    const users = answer.users ?? answer.data ?? [];
    suggestions = users.map((user) => (typeof user === "object" ? user : { id: user }));
  } catch (error) {
    if (error.name === "AbortError") return;
    suggestions = [];
  }
  active = -1;
  drawSuggestions(document.activeElement === at("user"));
}

function drawSuggestions(isOpen) {
  const list = at("users");
  list.hidden = !isOpen || !suggestions.length;
  const rows = suggestions.map((user, position) =>
    element(
      "li",
      {
        role: "option",
        id: `user-${position}`,
        "aria-selected": String(position === active),
        mousedown: (event) => event.preventDefault(),
        click: () => takeUser(user.id),
      },
      visible(beginning(user.id, SHORT_VALUE)),
      user.events === undefined
        ? null
        : element("small", {}, count(user.events, "event", "events")),
    ),
  );
  list.replaceChildren(...rows);
  at("user").setAttribute("aria-expanded", String(!list.hidden));
  if (active >= 0) at("user").setAttribute("aria-activedescendant", `user-${active}`);
  else at("user").removeAttribute("aria-activedescendant");
  list.children[active]?.scrollIntoView({ block: "nearest" });
}

function takeUser(id) {
  suggesting?.abort();
  state.user = String(id);
  state.history = null;
  at("user").value = state.user;
  suggestions = [];
  active = -1;
  drawSuggestions(false);
  writeAddress(true);
  recommend();
}

/** Ask what follows from the history of a user, or from an edited one. */
async function recommend() {
  at("edited").hidden = state.history === null;
  at("unedit").hidden = state.user === "";
  if (state.user === "" && state.history === null) {
    columns = [];
    at("past").hidden = true;
    const text = "Choose a user to see what was taken, what follows from it, and why.";
    at("following").replaceChildren(element("p", { class: "subtitle" }, text));
    suggest();
    return;
  }
  document.title = `${beginning(state.user || "a history", 60)} · Tempera`;
  const column = columns[0]?.key === "items" ? columns[0] : columnOfItems();
  columns = [column];
  at("following").replaceChildren(column.section);
  await fill(column);
  if (columns[0] !== column) return;
  const edited = (state.history ?? []).map((id) => ({ id }));
  drawHistory(column.trouble ? edited : (column.answer?.history ?? []));
  if (!column.trouble) say(`${count(column.hits.length, "item", "items")} recommended`);
}

function columnOfItems() {
  return makeColumn({
    key: "items",
    title: "What follows",
    subtitle: "the best next items first",
    of: "",
    short: "",
    showsIds: true,
    take: (data) => {
      const name = beginning(data.name || data.id, 60);
      const add = () => editHistory([...pastIds(), data.id]);
      return button("Take", add, { "aria-label": `Add ${name} to the history` });
    },
    request: () => ["v1/recommend", recommendation()],
  });
}

function recommendation() {
  const body = { k: state.k, model: recommenderOf().id, ...filter() };
  if (state.history === null) body.user = state.user;
  else body.history = state.history;
  return body;
}

function pastIds() {
  return state.history ?? (columns[0]?.answer?.history ?? []).map((item) => item.id);
}

function editHistory(items) {
  state.history = items;
  writeAddress(true);
  recommend();
}

function drawHistory(items, isWhole = false) {
  at("past").hidden = false;
  const rows = items.map((item, position) => {
    const remove = () => editHistory(pastIds().filter((_, other) => other !== position));
    const name = item.name || item.id;
    return element(
      "li",
      {},
      element("span", { class: "name" }, visible(beginning(name, SHORT_NAME))),
      item.name && item.name !== String(item.id)
        ? element("small", {}, visible(beginning(item.id, 40)))
        : null,
      button("✕", remove, { "aria-label": `Remove ${beginning(name, 60)}` }),
    );
  });
  rows.reverse();
  const most = narrow.matches ? SHOWN_EVENTS.narrow : SHOWN_EVENTS.wide;
  const shown = isWhole ? rows : rows.slice(0, most);
  if (shown.length < rows.length) {
    const open = button(`All ${rows.length}`, () => drawHistory(items, true));
    const earlier = `${rows.length - shown.length} earlier items`;
    shown.push(element("li", {}, element("span", { class: "name" }, earlier), open));
  }
  if (!rows.length) shown.push(element("li", { class: "nothing" }, "Nothing was taken yet."));
  at("events").replaceChildren(...shown);
}

function drawRecommend() {
  const model = recommenderOf();
  const items = model.documents ? ` from ${count(model.documents, "item", "items")}` : "";
  at("recommend-title").textContent = `Recommend${items}`;
  at("user").value = state.user;
  choose(at("items"), state.k);
  at("run-setting").hidden = recommenders().length < 2;
  const runs = recommenders().map(({ id }) => element("option", { value: id }, beginning(id, 60)));
  at("run").replaceChildren(...runs);
  at("run").value = model.id;
  drawFilter(at("item-filter"), at("item-where"), at("item-column-names"), model);
  recommend();
}

// ---- Keys ----

/** The hits of a column that are not left out. */
function shownHits(column) {
  return column.hits.filter((hit) => !hit.node.hidden);
}

/** The hit that has the focus, or holds what has it. */
function focusedHit() {
  const node = document.activeElement?.closest(".hit");
  for (const column of columns) {
    for (const hit of column.hits) if (hit.node === node) return hit;
  }
  return null;
}

function moveHits(by) {
  const hit = focusedHit();
  const column = hit?.column ?? columns[narrow.matches ? current : 0];
  if (!column) return;
  const hits = shownHits(column);
  const position = hit ? hits.indexOf(hit) + by : 0;
  if (position < 0) questionBox().focus();
  hits[position]?.node.focus();
}

function moveColumns(by) {
  const hit = focusedHit();
  const from = hit ? columns.indexOf(hit.column) : current;
  const to = from + by;
  if (!hit || to < 0 || to >= columns.length) return;
  const hits = shownHits(columns[to]);
  current = to;
  drawTabs();
  hits[Math.min(shownHits(hit.column).indexOf(hit), hits.length - 1)]?.node.focus();
}

function questionBox() {
  return state.world === "search" ? at("query") : at("user");
}

const KEYS = {
  "/": () => {
    questionBox().focus();
    questionBox().select();
  },
  "?": () => at("keys").showModal(),
  ArrowDown: () => moveHits(1),
  j: () => moveHits(1),
  ArrowUp: () => moveHits(-1),
  k: () => moveHits(-1),
  ArrowRight: () => moveColumns(1),
  l: () => moveColumns(1),
  ArrowLeft: () => moveColumns(-1),
  h: () => moveColumns(-1),
  w: () => {
    const hit = focusedHit();
    if (hit) toggleReason(hit);
  },
  Escape: () => {
    const hit = focusedHit();
    if (hit && !hit.reason.hidden) toggleReason(hit);
    else if (hit?.isWhole) toggleWhole(hit);
    else questionBox().focus();
  },
};

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || at("keys").open)
    return;
  const target = event.target;
  if (target.closest("[role=tab]") && /^Arrow(Left|Right)$/.test(event.key)) {
    event.preventDefault();
    changeTab(current + (event.key === "ArrowRight" ? 1 : -1));
    return;
  }
  if (target.matches("input, select, textarea")) {
    const isQuery = target === at("query");
    if (isQuery && event.key === "ArrowDown" && columns.length) {
      event.preventDefault();
      moveHits(1);
    }
    if (event.key === "Escape" && target !== at("user")) target.blur();
    return;
  }
  if (event.key.startsWith("Arrow") && !focusedHit()) return; // it scrolls the page
  if (event.key === "Enter" && target.matches(".hit")) {
    event.preventDefault();
    toggleWhole(focusedHit());
    return;
  }
  const action = KEYS[event.key];
  if (!action) return;
  event.preventDefault();
  action();
}

function pressedInUsers(event) {
  const steps = { ArrowDown: 1, ArrowUp: -1 };
  if (event.key in steps) {
    event.preventDefault();
    if (at("users").hidden) {
      suggest();
      return;
    }
    const places = suggestions.length + 1; // the last place is the text as typed
    active = ((active + 1 + steps[event.key] + places) % places) - 1;
    drawSuggestions(true);
  } else if (event.key === "Escape") {
    if (at("users").hidden) at("user").blur();
    drawSuggestions(false);
  }
}

// ---- Theme ----

const THEMES = { "": "as the system", light: "light", dark: "dark" };

/** Set the theme and keep it; a browser that keeps nothing takes that of the system next time. */
function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  const shapes = [["circle", { cx: 9, cy: 9, r: 6, class: theme === "dark" ? "full" : "empty" }]];
  if (!theme) shapes.push(["path", { d: "M9 3a6 6 0 0 1 0 12z", class: "full" }]);
  at("theme").replaceChildren(drawing("0 0 18 18", shapes));
  at("theme").setAttribute("aria-label", `Colours: ${THEMES[theme]}`);
  at("theme").title = `Colours: ${THEMES[theme]}`;
  try {
    if (theme) localStorage.setItem("theme", theme);
    else localStorage.removeItem("theme");
  } catch {
    // A browser may forbid it.
  }
}

function keptTheme() {
  try {
    const theme = localStorage.getItem("theme");
    return theme in THEMES ? theme : "";
  } catch {
    return "";
  }
}

// ---- Start ----

function draw() {
  const worlds = textModels().length && recommenders().length;
  at("worlds").hidden = !worlds;
  if (state.world === "recommend" && !recommenders().length) state.world = "search";
  if (state.world === "search" && !textModels().length) state.world = "recommend";
  for (const tab of at("worlds").children) {
    if (tab.dataset.world === state.world) tab.setAttribute("aria-current", "page");
    else tab.removeAttribute("aria-current");
  }
  at("search").hidden = state.world !== "search";
  at("recommend").hidden = state.world !== "recommend";
  document.title = "Tempera";
  if (state.world === "search") drawSearch();
  else drawRecommend();
}

async function start() {
  try {
    const { answer } = await ask("v1/models");
    models = answer.data ?? [];
    show("trouble", models.length ? "" : "This server has no run to ask.");
    if (!models.length) return;
    at("token-form").hidden = true;
    readAddress();
    draw();
    if (!narrow.matches && !state.query && !state.user) questionBox().focus();
  } catch (error) {
    show("trouble", error.message);
  }
}

/** Take the fields of the world that is shown, and ask. */
function submit(event) {
  event?.preventDefault();
  if (state.world === "search") {
    state.query = at("query").value.trim();
    state.k = Number(at("depth").value);
    state.where = at("where").value.trim();
    writeAddress(true);
    search();
  } else {
    state.k = Number(at("items").value);
    state.where = at("item-where").value.trim();
    state.run = at("run").value;
    if (active >= 0) takeUser(suggestions[active].id);
    else if (at("user").value !== state.user) takeUser(at("user").value);
    else {
      drawSuggestions(false);
      writeAddress(true);
      drawRecommend();
    }
  }
}

function listen() {
  at("ask").addEventListener("submit", submit);
  at("whom").addEventListener("submit", submit);
  for (const id of ["depth", "items", "run", "where", "item-where"]) {
    at(id).addEventListener("change", () => submit());
  }
  at("threshold").addEventListener("input", () => {
    state.threshold = Number(at("threshold").value);
    applyThreshold();
  });
  at("threshold").addEventListener("change", () => {
    writeAddress(false);
    const kept = columns.map((column) => `${column.title} ${shownHits(column).length}`).join(", ");
    say(`Hits from ${state.threshold} %: ${kept}`);
  });
  at("token-form").addEventListener("submit", (event) => {
    event.preventDefault();
    token = at("token").value;
    at("token").value = "";
    start();
  });
  for (const tab of at("worlds").children) {
    tab.addEventListener("click", () => {
      state.world = tab.dataset.world;
      state.where = "";
      columns = [];
      writeAddress(true);
      draw();
      questionBox().focus();
    });
  }
  let timer;
  at("user").addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(suggest, 120);
  });
  at("user").addEventListener("keydown", pressedInUsers);
  at("user").addEventListener("blur", () => drawSuggestions(false));
  at("add-event").addEventListener("submit", (event) => {
    event.preventDefault();
    const item = at("event").value.trim();
    at("event").value = "";
    if (item) editHistory([...pastIds(), item]);
  });
  at("unedit").addEventListener("click", () => editHistory(null));
  at("show-keys").addEventListener("click", KEYS["?"]);
  at("theme").addEventListener("click", () => {
    const order = Object.keys(THEMES);
    const place = order.indexOf(document.documentElement.dataset.theme ?? "");
    setTheme(order[(place + 1) % order.length]);
  });
  document.addEventListener("keydown", pressed);
  narrow.addEventListener("change", drawTabs);
  addEventListener("popstate", () => {
    readAddress();
    draw();
  });
}

setTheme(keptTheme());
listen();
start();
