// How the pages are read: as GitHub reads them. They are written for GitHub and for the runner of the examples, so what
// VitePress would read differently is set here: fences, links, fragments, HTML and braces in prose.

import fs from "node:fs";
import path from "node:path";
import { ROOT, address } from "./pages.js";

/** Languages of fences that the highlighter does not know. */
const LANGUAGES = { output: "txt", "": "txt" };

/** HTML that the pages use on purpose: comments, and anchors that keep old links valid. */
const HTML = /^\s*(<!--(?!-?>)[^]*?-->|<a id="[\w-]+">|<\/a>|<a id="[\w-]+"><\/a>)\s*$/;

/** The options of VitePress for Markdown. `files` are all pages, `repository` is the address for the other files. */
export function markdownOptions(files, repository) {
  return {
    anchor: { slugify },
    attrs: { disable: true },
    config(md) {
      md.core.ruler.disable("emoji");
      md.linkify.set({ fuzzyLink: false, fuzzyEmail: false });
      md.core.ruler.push("languages", ({ tokens }) => tokens.forEach(setLanguage));
      md.core.ruler.push("files", ({ tokens, env }) => setLinks(tokens, env, files, repository));
      const { html_inline: inline, html_block: block, code_inline: code } = md.renderer.rules;
      md.renderer.rules.text = (tokens, index) => withoutBraces(escape(tokens[index].content));
      md.renderer.rules.code_inline = (...args) => withoutBraces(code(...args));
      md.renderer.rules.html_inline = (...args) => html(inline, ...args);
      md.renderer.rules.html_block = (...args) => html(block, ...args);
    },
  };
}

/** The fragment of a heading on GitHub. */
export function slugify(heading) {
  return heading.trim().toLowerCase().replace(/[^\p{L}\p{M}\p{N}\p{Pc}\- ]/gu, "").replaceAll(" ", "-");
}

/** The words after the language are for the runner of the examples. */
function setLanguage(token) {
  if (token.type !== "fence") return;
  const language = token.info.split(/[\s,]/, 1)[0];
  token.info = LANGUAGES[language] ?? language;
}

/**
 * Points links between files at pages of the site. A file that is not a page is in the repository: its link goes there, or
 * only its text stays. A link to nothing stays as it is, and the check of the site finds it.
 */
function setLinks(tokens, env, files, repository) {
  const directory = path.dirname(env.realPath ?? env.path);
  for (const token of tokens) {
    let isText = false;
    for (const child of token.children ?? []) {
      if (child.type === "link_open") isText = setLink(child, directory, files, repository);
      else if (child.type === "link_close" && isText) child.tag = "span";
    }
  }
}

/** Whether the link has become plain text. */
function setLink(token, directory, files, repository) {
  const href = decodeURI(token.attrGet("href"));
  if (/^([a-z]+:|#|\/)/.test(href)) return false;
  const [target, fragment] = href.split("#");
  const file = path.relative(ROOT, path.join(directory, target)).split(path.sep).join("/");
  if (files.includes(file)) {
    token.attrSet("href", address(file) + (fragment ? `#${fragment}` : ""));
  } else if (fs.existsSync(path.join(ROOT, file))) {
    if (repository === undefined) {
      token.tag = "span";
      token.attrs = [["title", `${file} in the repository`]];
      return true;
    }
    token.attrSet("href", `${repository}/blob/HEAD/${file}${fragment ? `#${fragment}` : ""}`);
  }
  return false;
}

/** Text as HTML. An entity is one already. */
function escape(text) {
  const entities = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
  return text.replace(/&(?!#?\w+;)|[<>"]/g, (character) => entities[character]);
}

/** Between two braces Vue would look for an expression. */
function withoutBraces(html) {
  return html.replaceAll("{{", "&#123;&#123;");
}

/** Other HTML is shown: GitHub would drop it, and Vue would take it for a component. */
function html(rule, tokens, index, ...rest) {
  const { content } = tokens[index];
  if (!HTML.test(content)) return withoutBraces(escape(content));
  return content.includes("<!--") ? "" : rule(tokens, index, ...rest);
}
