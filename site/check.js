// Checks the built site: node check.js [DIRECTORY], target/site unless given.
//
// Links, fragments and images of every page lead somewhere; every Markdown file has a page and is found by the search; and
// nothing is loaded from elsewhere. The links are those of the Markdown files, so this is also the link check of docs/.

import fs from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { ROOT, address, pages } from "./pages.js";

/** What is wrong with the HTML files of a directory, as a list of texts. */
export function problems(directory, base = "/") {
  const ids = new Map(htmlFiles(directory).map((file) => [file, idsOf(read(directory, file))]));
  const found = [];
  for (const file of ids.keys()) {
    for (const { tag, target } of targets(read(directory, file))) {
      const problem = problemOf(tag, target, file);
      if (problem) found.push(`${file}: ${target} ${problem}`);
    }
  }
  return [...new Set(found)];

  function problemOf(tag, target, file) {
    if (/^(data|mailto):/.test(target)) return undefined;
    if (/^([a-z]+:)?\/\//.test(target)) return tag === "a" ? undefined : "is loaded from elsewhere";
    const [, name, fragment] = /^([^?#]*)(?:\?[^#]*)?(?:#(.*))?$/s.exec(target);
    if (name.startsWith("/") && !name.startsWith(base)) return `is outside of ${base}`;
    const absolute = name.startsWith("/") ? name.slice(base.length - 1) : path.posix.join("/", path.posix.dirname(file), name);
    const named = name === "" ? file : decodeURIComponent(absolute).replace(/^\//, "").replace(/(^|\/)$/, "$1index.html");
    if (!fs.existsSync(path.join(directory, named))) return "does not exist";
    if (fragment && !ids.get(named)?.has(decodeURIComponent(fragment))) return "names no heading";
    return undefined;
  }
}

/** Pages that the build has left out, or that the search does not know. */
export function missing(directory, files) {
  const index = fs.readdirSync(path.join(directory, "assets/chunks")).filter((name) => name.startsWith("@localSearchIndex"));
  const known = index.map((name) => read(directory, `assets/chunks/${name}`)).join("");
  return files.flatMap((file) => {
    const page = address(file).replace(/\/$/, "/index.html").slice(1);
    if (!fs.existsSync(path.join(directory, page))) return [`${file}: is not in the site`];
    return known.includes(`"${address(file)}`) ? [] : [`${file}: the search does not find it`];
  });
}

function htmlFiles(directory) {
  return fs.readdirSync(directory, { recursive: true }).filter((name) => name.endsWith(".html")).sort();
}

function read(directory, file) {
  return fs.readFileSync(path.join(directory, file), "utf8");
}

function idsOf(html) {
  return new Set(Array.from(html.matchAll(/<[a-z][^>]*?\sid="([^"]+)"/g), ([, id]) => unescape(id)));
}

/** The targets of links, images, scripts and style sheets. */
function targets(html) {
  const tags = html.matchAll(/<(a|img|link|script|source)\s([^>]*)>/g);
  return Array.from(tags).flatMap(([, tag, attributes]) =>
    Array.from(attributes.matchAll(/(?:^|\s)(?:href|src)="([^"]*)"/g), ([, target]) => ({ tag, target: unescape(target) })),
  );
}

function unescape(text) {
  const characters = { amp: "&", lt: "<", gt: ">", quot: '"', "#39": "'" };
  return text.replace(/&(amp|lt|gt|quot|#39);/g, (_, name) => characters[name]);
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const directory = process.argv[2] ?? path.join(ROOT, "target/site");
  const found = [...problems(directory, process.env.SITE_BASE), ...missing(directory, pages())];
  found.forEach((problem) => console.error(problem));
  console.log(`${htmlFiles(directory).length} pages, ${found.length} problems`);
  process.exit(found.length > 0 ? 1 : 0);
}
