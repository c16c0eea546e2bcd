// The rules of the sidebar and the check of the built site, on small inputs with mistakes planted.

import assert from "node:assert/strict";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { test } from "node:test";
import { missing, problems } from "../check.js";
import { GROUPS, pages, sidebar } from "../pages.js";

const title = (file) => file;
const group = (...entries) => [{ text: "Group", entries }];

test("the sidebar has every page of docs/ once", () => {
  const files = ["CHANGELOG.md", "docs/a.md", "docs/b.md", "docs/decisions/0001-x.md", "docs/start/one.md", "docs/start/two.md", "docs/style.md"];
  const [{ items }] = sidebar(group("docs/b.md", "docs/start/", { text: "A", page: "docs/a.md" }, { text: "Part", page: "docs/a.md#part" }), files, title);
  assert.deepEqual(items, [
    { text: "docs/b.md", link: "/b.html" },
    { text: "docs/start/one.md", link: "/start/one.html" },
    { text: "docs/start/two.md", link: "/start/two.html" },
    { text: "A", link: "/a.html" },
    { text: "Part", link: "/a.html#part" },
  ]);
});

test("a page in no group, in two places, or not there fails", () => {
  const cases = [
    [group("docs/a.md"), ["docs/a.md", "docs/b.md"], /in no group: docs\/b\.md/],
    [group("docs/a.md", { text: "Part", page: "docs/b.md#part" }), ["docs/a.md", "docs/b.md"], /in no group: docs\/b\.md/],
    [group("docs/a.md", "docs/gone.md"), ["docs/a.md"], /names docs\/gone\.md, which does not exist/],
    [group("docs/a.md", "docs/a.md"), ["docs/a.md"], /docs\/a\.md is in two places/],
  ];
  for (const [groups, files, message] of cases) assert.throws(() => sidebar(groups, files, title), message);
  assert.deepEqual(sidebar(group("docs/a.md", "docs/start/"), ["docs/a.md"], title)[0].items.length, 1);
});

test("the sidebar of the site is in order", () => {
  assert.equal(sidebar().length, GROUPS.length);
  assert.ok(pages().includes("docs/publish.md") && pages().includes("crates/kit/README.md"));
  assert.ok(!pages().some((file) => file.includes("node_modules")));
});

/** A site of these files. */
function built(files) {
  const directory = fs.mkdtempSync(path.join(os.tmpdir(), "posthaste-site-"));
  for (const [name, text] of Object.entries(files)) {
    fs.mkdirSync(path.dirname(path.join(directory, name)), { recursive: true });
    fs.writeFileSync(path.join(directory, name), text);
  }
  return directory;
}

function withSite(files, run) {
  const directory = built(files);
  try {
    return run(directory);
  } finally {
    fs.rmSync(directory, { recursive: true });
  }
}

test("dead links, fragments and images are found", () => {
  const other = '<h2 class="x" id="there">There</h2><a id="old&amp;"></a>';
  const cases = [
    ['<a href="/b.html">', []],
    ['<a class="x" href="/b.html#there">', []],
    ['<a href="b.html#old&amp;">', []],
    ['<a href="/">', []],
    ['<a href="/sub/">', []],
    ['<p id="here"><a href="#here">', []],
    ['<img src="/assets/a.png" alt="x">', []],
    ['<a href="https://example.com/#x">', []],
    ['<img src="data:image/png;base64,AA==">', []],
    ["&lt;a href=&quot;/dead.html&quot;&gt;", []],
    ['<a href="/dead.html">', ["a.html: /dead.html does not exist"]],
    ['<a href="/b.html#gone">', ["a.html: /b.html#gone names no heading"]],
    ['<a href="#gone">', ["a.html: #gone names no heading"]],
    ['<a href="../x.json">', ["a.html: ../x.json does not exist"]],
    ['<img src="/assets/gone.png">', ["a.html: /assets/gone.png does not exist"]],
    ['<img alt="x" src="https://example.com/a.png">', ["a.html: https://example.com/a.png is loaded from elsewhere"]],
    ['<link rel="stylesheet" href="//example.com/a.css">', ["a.html: //example.com/a.css is loaded from elsewhere"]],
  ];
  for (const [html, expected] of cases) {
    const files = { "a.html": html, "b.html": other, "index.html": "", "sub/index.html": '<a href="../b.html#there">', "assets/a.png": "" };
    withSite(files, (directory) => assert.deepEqual(problems(directory), expected, html));
  }
});

test("a site under a path has its links there", () => {
  const files = { "a.html": '<a href="/docs/b.html"><a href="/b.html">', "b.html": "" };
  withSite(files, (directory) => assert.deepEqual(problems(directory, "/docs/"), ["a.html: /b.html is outside of /docs/"]));
});

test("pages that the build or the search has left out are found", () => {
  const files = { "a.html": "", "b.html": "", "index.html": "", "assets/chunks/@localSearchIndexroot.js": '{"0":"/#x","1":"/a.html#y"}' };
  withSite(files, (directory) =>
    assert.deepEqual(missing(directory, ["docs/a.md", "docs/b.md", "docs/c.md", "docs/README.md"]), [
      "docs/b.md: the search does not find it",
      "docs/c.md: is not in the site",
    ]),
  );
});
