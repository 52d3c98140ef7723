// Markdown of a model as nodes. Text becomes text nodes and nothing else: no markup of a model is ever read as HTML, no picture is
// loaded, and links go to the web or to mail only.

const FENCE = /^ {0,3}(`{3,}|~{3,})(.*)$/;
const HEADING = /^ {0,3}(#{1,6})[ \t]+(\S.*)$/;
const ITEM = /^([ \t]*)([-*+]|\d{1,9}[.)])(?:[ \t]+(\S.*)?)?$/;
const QUOTE = /^ {0,3}>/;
const LINK = /\[([^[\]\n]{1,400})\]\(<?([^()\s<>]{1,2000}(?:\([^()\s]{0,200}\)[^()\s]{0,200})?)>?\)/y;
const BARE_LINK = /https?:\/\/[^\s<>"'`，。）]{1,2000}/y;
// The end of emphasis is looked for within so many characters, so that a long text is read in linear time.
const REACH = 1000;
const DEEPEST = 8;

function element(name, className, ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

function indentOf(line) {
  let width = 0;
  for (const c of line) {
    if (c === " ") width += 1;
    else if (c === "\t") width += 4;
    else break;
  }
  return width;
}

function isBlank(line) {
  return line.trim() === "";
}

// The fence that a line opens, and the language that it names.
function fenceOf(line) {
  const found = FENCE.exec(line);
  if (!found || (found[1][0] === "`" && found[2].includes("`"))) return null;
  return { mark: found[1], language: found[2].trim().split(/\s/, 1)[0] };
}

function isRule(line) {
  const marks = line.replace(/[ \t]/g, "");
  return marks.length >= 3 && indentOf(line) < 4 && /^(-+|\*+|_+)$/.test(marks);
}

// The cells of a line of a table.
function cells(line) {
  const found = line.trim().replace(/^\|/, "").split(/(?<!\\)\|/);
  if (found.length > 1 && isBlank(found[found.length - 1])) found.pop();
  return found.map((cell) => cell.trim().replace(/\\\|/g, "|"));
}

function isTable(lines, at) {
  if (!lines[at].includes("|") || at + 1 >= lines.length || !lines[at + 1].includes("-")) return false;
  const divisions = cells(lines[at + 1]);
  return divisions.every((cell) => /^:?-+:?$/.test(cell)) && divisions.length === cells(lines[at]).length;
}

function endsParagraph(lines, at) {
  const line = lines[at];
  const item = ITEM.exec(line);
  const isItem = item && item[3] !== undefined && !/^(?!1[.)])\d/.test(item[2]);
  return isBlank(line) || isItem || fenceOf(line) || HEADING.test(line) || QUOTE.test(line) || isRule(line) || isTable(lines, at);
}

// Where a list that begins at `from` ends, and the lines of its items.
function readList(lines, from) {
  const first = ITEM.exec(lines[from]);
  const indent = indentOf(first[1]);
  const isOrdered = /\d/.test(first[2]);
  const items = [];
  let at = from;
  let offset = 0;
  const ownItem = (line) => {
    const item = ITEM.exec(line);
    const fits = item && !isRule(line) && /\d/.test(item[2]) === isOrdered;
    return fits && indentOf(item[1]) <= indent + 1 && indentOf(item[1]) >= indent - 1 ? item : null;
  };
  for (; at < lines.length; at += 1) {
    const line = lines[at];
    const item = ownItem(line);
    if (item) {
      offset = item[1].length + item[2].length + 1;
      items.push([item[3] ?? ""]);
      continue;
    }
    const lastItem = items[items.length - 1];
    if (isBlank(line)) {
      let next = at + 1;
      while (next < lines.length && isBlank(lines[next])) next += 1;
      if (next >= lines.length || !(ownItem(lines[next]) || indentOf(lines[next]) > indent + 1)) break;
      lastItem.push("");
    } else if (indentOf(line) > indent) {
      lastItem.push(line.slice(Math.min(offset, line.length - line.trimStart().length)));
    } else if (isBlank(lines[at - 1]) || endsParagraph(lines, at)) {
      break;
    } else {
      lastItem.push(line);
    }
  }
  return { end: at, items, isOrdered, start: parseInt(first[2], 10) };
}

// The blocks of lines: where each ends, and what makes its node.
function* blocksOf(lines, depth) {
  let at = 0;
  while (at < lines.length) {
    const from = at;
    const line = lines[at];
    const fence = fenceOf(line);
    const heading = HEADING.exec(line);
    if (isBlank(line)) {
      at += 1;
      continue;
    }
    if (fence) {
      const closes = (other) => other.trim().startsWith(fence.mark) && other.trim().replaceAll(fence.mark[0], "") === "";
      at += 1;
      while (at < lines.length && !closes(lines[at])) at += 1;
      const code = lines.slice(from + 1, at);
      const indent = indentOf(line);
      at += 1;
      yield { from, end: at, make: () => codeBlock(code.map((l) => l.slice(Math.min(indent, indentOf(l)))).join("\n"), fence.language) };
    } else if (heading) {
      at += 1;
      // The page has headings of its own above these.
      const name = `h${Math.min(6, heading[1].length + 2)}`;
      yield { from, end: at, make: () => inline(element(name), heading[2].trimEnd().replace(/ #+$/, ""), depth) };
    } else if (isRule(line)) {
      at += 1;
      yield { from, end: at, make: () => element("hr") };
    } else if (QUOTE.test(line) && depth < DEEPEST) {
      while (at < lines.length && (QUOTE.test(lines[at]) || !endsParagraph(lines, at))) at += 1;
      const inner = lines.slice(from, at).map((l) => l.replace(/^ {0,3}> ?/, ""));
      yield { from, end: at, make: () => fill(element("blockquote"), inner, depth + 1) };
    } else if (ITEM.test(line) && depth < DEEPEST) {
      const list = readList(lines, at);
      at = list.end;
      yield { from, end: at, make: () => listNode(list, depth) };
    } else if (isTable(lines, at)) {
      at += 2;
      while (at < lines.length && lines[at].includes("|") && !isBlank(lines[at])) at += 1;
      const rows = lines.slice(from, at);
      yield { from, end: at, make: () => tableNode(rows, depth) };
    } else {
      at += 1;
      while (at < lines.length && !endsParagraph(lines, at)) at += 1;
      const text = lines.slice(from, at).map((l) => l.trim()).join("\n");
      yield { from, end: at, make: () => inline(element("p"), text, depth) };
    }
  }
}

function fill(parent, lines, depth) {
  for (const block of blocksOf(lines, depth)) parent.append(block.make());
  return parent;
}

function listNode(list, depth) {
  const node = element(list.isOrdered ? "ol" : "ul");
  if (list.isOrdered && list.start !== 1) node.start = list.start;
  for (const lines of list.items) {
    const item = fill(element("li"), lines, depth + 1);
    // An item of one line is no paragraph.
    const only = item.firstElementChild;
    if (only?.tagName === "P") only.replaceWith(...only.childNodes);
    node.append(item);
  }
  return node;
}

function tableNode(lines, depth) {
  const sides = cells(lines[1]).map((cell) => (cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "right") : ""));
  const row = (line, name) => {
    const found = cells(line);
    const made = sides.map((side, i) => inline(element(name, side), found[i] ?? "", depth));
    return element("tr", "", ...made);
  };
  const body = element("tbody", "", ...lines.slice(2).map((line) => row(line, "td")));
  const table = element("table", "", element("thead", "", row(lines[0], "th")), body);
  const frame = element("div", "frame", table);
  frame.tabIndex = 0;
  return frame;
}

function codeBlock(text, language) {
  const copy = element("button", "copy-code", "Copy");
  copy.type = "button";
  copy.setAttribute("aria-label", "Copy the code");
  const code = element("pre", "", element("code", "", text));
  code.tabIndex = 0;
  code.dir = "ltr";
  return element("div", "code", element("div", "bar", element("span", "", language || "text"), copy), code);
}

function isWord(c) {
  return c !== undefined && /[\p{L}\p{N}_]/u.test(c);
}

// Where the emphasis that `mark` begins at `at` ends; -1 if it does not.
function emphasisEnd(text, at, mark) {
  const from = at + mark.length;
  if (/^\s?$/.test(text[from] ?? "") || (mark[0] === "_" && isWord(text[at - 1]))) return -1;
  const last = Math.min(text.length, from + REACH);
  for (let end = from + 1; end < last; end += 1) {
    end = text.indexOf(mark, end);
    if (end < 0 || end >= last) return -1;
    // The third mark of three belongs to what is inside.
    if (mark.length === 2 && text[end + 2] === mark[0] && text[end - 1] !== mark[0]) end += 1;
    const after = end + mark.length;
    if (mark.length === 1 && (text[after] === mark || text[end - 1] === mark)) {
      // It belongs to a mark of two.
      while (text[end + 1] === mark) end += 1;
      continue;
    }
    if (!/\s|\\/.test(text[end - 1]) && !(mark[0] === "_" && isWord(text[after]))) return end;
  }
  return -1;
}

function linkNode(address, depth, text) {
  let url;
  try {
    url = new URL(address);
  } catch {
    return null;
  }
  if (!["http:", "https:", "mailto:"].includes(url.protocol)) return null;
  const node = text === null ? element("a", "", address) : inline(element("a"), text, depth + 1);
  node.href = url.href;
  node.title = url.href;
  node.target = "_blank";
  node.rel = "noopener noreferrer nofollow";
  return node;
}

// Adds what stands in a line of Markdown.
function inline(parent, text, depth = 0) {
  let plain = "";
  let at = 0;
  const put = (node, end) => {
    if (plain) parent.append(plain);
    plain = "";
    parent.append(node);
    at = end;
  };
  while (at < text.length) {
    const c = text[at];
    if (c === "\\" && /[\\`*_~#|<>+.!-]/.test(text[at + 1] ?? "")) {
      plain += text[at + 1];
      at += 2;
      continue;
    }
    if (c === "`") {
      const mark = /^`+/.exec(text.slice(at, at + 32))[0];
      const end = text.indexOf(mark, at + mark.length);
      if (end > 0 && text[end + mark.length] !== "`") {
        const code = text.slice(at + mark.length, end);
        put(element("code", "", code.length > 2 ? code.replace(/^ (.*) $/s, "$1") : code), end + mark.length);
      } else {
        plain += mark;
        at += mark.length;
      }
      continue;
    }
    if ((c === "*" || c === "_" || c === "~") && depth < DEEPEST) {
      const mark = text[at + 1] === c ? c + c : c;
      const end = mark === "~" ? -1 : emphasisEnd(text, at, mark);
      if (end > 0) {
        const name = c === "~" ? "del" : mark.length === 2 ? "strong" : "em";
        put(inline(element(name), text.slice(at + mark.length, end), depth + 1), end + mark.length);
      } else {
        plain += mark;
        at += mark.length;
      }
      continue;
    }
    if (c === "[" || (c === "h" && !isWord(text[at - 1]))) {
      const pattern = c === "[" ? LINK : BARE_LINK;
      pattern.lastIndex = at;
      const found = depth < DEEPEST && pattern.exec(text);
      const bare = found && c === "h" ? found[0].replace(/[.,:;!?)\]*_]+$/, "") : null;
      const node = found && linkNode(bare ?? found[2], depth, bare === null ? found[1] : null);
      if (node) {
        put(node, at + (bare ?? found[0]).length);
        continue;
      }
    }
    plain += c;
    at += 1;
  }
  if (plain) parent.append(plain);
  return parent;
}

// Shows a text that grows: only blocks that have changed are made again.
class Prose {
  constructor(node) {
    this.node = node;
    this.sources = [];
  }

  show(text) {
    const lines = text.replace(/\r\n?/g, "\n").split("\n");
    const blocks = [...blocksOf(lines, 0)];
    const sources = blocks.map((block) => lines.slice(block.from, block.end).join("\n"));
    let same = 0;
    while (same < sources.length && sources[same] === this.sources[same]) same += 1;
    while (this.node.childNodes.length > same) this.node.lastChild.remove();
    for (const block of blocks.slice(same)) this.node.append(block.make());
    this.sources = sources;
  }
}
