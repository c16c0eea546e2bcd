// The pages as their readers see them: Markdown through the site's rules, VitePress and Vue.

import assert from "node:assert/strict";
import path from "node:path";
import { test } from "node:test";
import { createMarkdownRenderer } from "vitepress";
import { createSSRApp } from "vue";
import { renderToString } from "vue/server-renderer";
import { markdownOptions, slugify } from "../markdown.js";
import { ROOT, address, pages, repository } from "../pages.js";

const files = pages();
const md = await createMarkdownRenderer(ROOT, markdownOptions(files, undefined));

/** The HTML of a page, without what Vue adds. */
function shown(markdown, page = "docs/publish.md") {
  const template = md.render(markdown, { path: path.join(ROOT, page) });
  return renderToString(createSSRApp({ template, compilerOptions: { isCustomElement: () => false } }));
}

test("braces and angle brackets are text", async () => {
  const html = await shown("Send {{ body }}, `{{ code }}`, <name>, `<x>`, a < b & {id: 1} :100: &lt;\n\n# Get {{ this }}\n\n| a |\n|---|\n| {{ cell }} |\n");
  for (const text of ["Send {{ body }}", "<code>{{ code }}</code>", "&lt;name&gt;", "<code>&lt;x&gt;</code>", "a &lt; b &amp; {id: 1} :100: &lt;<", "Get {{ this }}", "{{ cell }}"]) {
    assert.ok(html.includes(text), `${text} is not in ${html}`);
  }
});

test("comments and old anchors stay out of sight", async () => {
  const html = await shown('<!-- no-run: a {{ reason }} -->\n\n<a id="old"></a>\n\n## New\n\nText <!-- here --> and <a id="inline"></a>more.\n\n<script>alert(1)</script>\n');
  assert.ok(!html.includes("no-run") && !html.includes("here"), html);
  assert.ok(html.includes('<a id="old"></a>') && html.includes('<a id="inline"></a>'), html);
  assert.ok(html.includes("&lt;script&gt;"), html);
});

test("words after the language of a fence are not shown", async () => {
  const fences = ["bash tutorial=first terminal=2", "bash no-run", "js file=app/family/[...name]/route.js", "rust,ignore", "output tutorial=first terminal=1", "json", ""];
  for (const info of fences) {
    const html = await shown(`\`\`\`${info}\nlet a = "{{ b }}";\n\`\`\`\n`);
    assert.ok(html.replaceAll(/<[^>]*>/g, "").includes("let a = &quot;{{ b }}&quot;;"), html);
    for (const word of ["tutorial", "no-run", "file=", "ignore", "output"]) assert.ok(!html.includes(word), `${word} is in ${html}`);
    assert.equal(/--shiki-light:#(?!24292e)/i.test(html), !/^(output.*)?$/.test(info), `highlighting of ${info}: ${html}`);
  }
});

test("links lead to pages, and to text where there is no page", async () => {
  const cases = [
    ["docs/publish.md", "[a](retries.md)", '<a href="/retries.html">a</a>'],
    ["docs/publish.md", "[a](retries.md#some-place)", '<a href="/retries.html#some-place">a</a>'],
    ["docs/publish.md", "[a](#here)", '<a href="#here">a</a>'],
    ["docs/publish.md", "[a](README.md#x)", '<a href="/#x">a</a>'],
    ["docs/reliability/torture.md", "[a](../README.md)", '<a href="/">a</a>'],
    ["docs/workflows.md", "[a](../README.md#run-it)", '<a href="/introduction.html#run-it">a</a>'],
    ["README.md", "[a](docs/publish.md)", '<a href="/publish.html">a</a>'],
    ["docs/handlers.md", "[a](../crates/kit/README.md)", '<a href="/crates/kit/">a</a>'],
    ["docs/handlers.md", "[a](../vectors)", '<span title="vectors in the repository">a</span>'],
    ["docs/README.md", "[`a`](../test)", '<span title="test in the repository"><code>a</code></span>'],
    ["docs/publish.md", "[a](../missing.json)", '<a href="../missing.json"'],
    ["docs/publish.md", "[a](https://example.com/b)", '<a href="https://example.com/b" target="_blank" rel="noreferrer">a</a>'],
    ["docs/publish.md", "posthaste.example.com and QStash.md", "<p>posthaste.example.com and QStash.md</p>"],
  ];
  for (const [page, markdown, expected] of cases) {
    const html = await shown(markdown, page);
    assert.ok(html.includes(expected), `${markdown} on ${page}: ${html}`);
  }
});

test("fragments are those of GitHub", () => {
  const cases = [
    ["One, two: three", "one-two-three"],
    ["What is there?", "what-is-there"],
    ["`POST /v2/publish/{destination}`", "post-v2publishdestination"],
    ["A – b", "a--b"],
    ["The `limits_max` Ünïcode", "the-limits_max-ünïcode"],
  ];
  for (const [heading, fragment] of cases) assert.equal(slugify(heading), fragment);
});

test("a page has one address, and the repository one if it is named", () => {
  assert.deepEqual(
    ["README.md", "docs/README.md", "docs/publish.md", "docs/quickstarts/rails.md", "docs/quickstarts/README.md", "CHANGELOG.md", "bench/README.md"].map(address),
    ["/introduction.html", "/", "/publish.html", "/quickstarts/rails.html", "/quickstarts/", "/changelog.html", "/bench/"],
  );
  assert.equal(new Set(files.map(address)).size, files.length);
  assert.equal(repository('[workspace.package]\nrepository = "https://example.com/a/b/"\n'), "https://example.com/a/b");
  assert.equal(repository("[workspace.package]\n"), undefined);
});
