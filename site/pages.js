// Which Markdown files are pages of the site, under which addresses, and in which order the sidebar shows them.
//
// Every Markdown file of the repository is a page, so that links between them work. The sidebar is the list GROUPS: every
// page of docs/ is in it, except those that are only linked (UNLISTED). A new page gets a line here.

import fs from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";

/** The repository. */
export const ROOT = fileURLToPath(new URL("..", import.meta.url));

/** The sidebar. An entry is a file, a file with a fragment, or a directory, which ends with a slash and may be absent. */
export const GROUPS = [
  {
    text: "Start here",
    entries: [
      { text: "Overview", page: "docs/README.md" },
      { text: "Introduction", page: "README.md" },
      "docs/quickstarts/",
      "docs/test-receiver.md",
      "docs/console.md",
    ],
  },
  {
    text: "Guides",
    entries: [
      "docs/publish.md",
      "docs/retries.md",
      "docs/deduplication.md",
      "docs/url-groups.md",
      "docs/queues.md",
      "docs/flow-control.md",
      "docs/schedules.md",
      "docs/workflows.md",
      "docs/callbacks.md",
      "docs/cancel.md",
      "docs/dlq.md",
      "docs/logs.md",
      "docs/signatures.md",
      "docs/handlers.md",
      "docs/llm.md",
    ],
  },
  { text: "Operate", entries: ["docs/configuration.md", "docs/operations.md"] },
  {
    text: "Reference",
    entries: [
      "docs/api.md",
      { text: "Settings", page: "docs/configuration.md#settings" },
      "docs/limits.md",
      { text: "posthaste-kit (Rust)", page: "crates/kit/README.md" },
      "CHANGELOG.md",
    ],
  },
  {
    text: "Why trust it",
    entries: [
      "docs/reliability.md",
      "docs/reliability/torture.md",
      "docs/reliability/simulation.md",
      "docs/reliability/receivers.md",
      "docs/reliability/hostile-input.md",
      "docs/benchmarks.md",
    ],
  },
  { text: "Compare and migrate", entries: ["docs/compare.md", "docs/migrating.md"] },
  { text: "Contribute", entries: ["ARCHITECTURE.md", "CONTRIBUTING.md"] },
];

/** Pages of docs/ that no group has to name. */
const UNLISTED = /^docs\/(decisions\/|style\.md$)/;

/** The path of a page in the site: `docs/publish.md` is `publish.md`, a directory's README is its index. */
export function sitePath(file) {
  if (file === "README.md") return "introduction.md";
  const inSite = file.replace(/^docs\//, "").replace(/(^|\/)README\.md$/, "$1index.md");
  return inSite.includes("/") ? inSite : inSite.toLowerCase();
}

/** The address of a page: `docs/publish.md` is `/publish.html`. */
export function address(file) {
  return `/${sitePath(file)}`.replace(/(^|\/)index\.md$/, "$1").replace(/\.md$/, ".html");
}

/** Every Markdown file, relative to the repository. */
export function pages(root = ROOT) {
  return walk(root, "").sort();
}

function walk(root, directory) {
  return fs.readdirSync(path.join(root, directory), { withFileTypes: true }).flatMap((entry) => {
    if (entry.name.startsWith(".") || EXCLUDED.includes(entry.name)) return [];
    const file = path.posix.join(directory, entry.name);
    if (entry.isDirectory()) return walk(root, file);
    return entry.name.endsWith(".md") ? [file] : [];
  });
}

/** Directories without pages, wherever they are. */
export const EXCLUDED = ["node_modules", "target", "posthaste-data"];

/** The sidebar in VitePress's form. Fails if a page of docs/ is in no group, or if a group names one that is not there. */
export function sidebar(groups = GROUPS, files = pages(), title = titleOf) {
  const named = new Set();
  const items = groups.map(({ text, entries }) => ({
    text,
    items: entries.flatMap(expand).map((entry) => {
      const [file, fragment] = entry.page.split("#");
      if (!files.includes(file)) throw new Error(`site/pages.js: the group "${text}" names ${file}, which does not exist`);
      if (!fragment && named.has(file)) throw new Error(`site/pages.js: ${file} is in two places`);
      if (!fragment) named.add(file);
      return { text: entry.text ?? title(file), link: address(file) + (fragment ? `#${fragment}` : "") };
    }),
  }));
  const missing = files.filter((file) => file.startsWith("docs/") && !UNLISTED.test(file) && !named.has(file));
  if (missing.length > 0) throw new Error(`site/pages.js: in no group: ${missing.join(", ")}`);
  return items;

  function expand(entry) {
    if (typeof entry !== "string") return [entry];
    return entry.endsWith("/") ? files.filter((file) => file.startsWith(entry)).map((page) => ({ page })) : [{ page: entry }];
  }
}

/** The heading of a page. */
function titleOf(file) {
  const heading = /^# (.+)$/m.exec(fs.readFileSync(path.join(ROOT, file), "utf8"));
  if (!heading) throw new Error(`${file}: has no heading`);
  return heading[1].replaceAll("`", "");
}

/** The address of the repository, if Cargo.toml names one. */
export function repository(manifest = fs.readFileSync(path.join(ROOT, "Cargo.toml"), "utf8")) {
  return /^repository = "([^"]+?)\/?"$/m.exec(manifest)?.[1];
}
