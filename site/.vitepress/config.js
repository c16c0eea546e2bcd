// The settings of VitePress. The pages are in site/pages.js, their Markdown in site/markdown.js.

import fs from "node:fs";
import path from "node:path";
import { defineConfig } from "vitepress";
import { markdownOptions } from "../markdown.js";
import { EXCLUDED, ROOT, pages, repository, sidebar, sitePath } from "../pages.js";

const files = pages();
const source = repository();
const icon = fs.readFileSync(path.join(ROOT, "crates/server/src/console/assets/icon.svg"), "base64");
const iconAddress = `data:image/svg+xml;base64,${icon}`;

/** The pages are outside of this package; what they are compiled to imports Vue, which is inside. */
const vueOfTheSite = {
  name: "vue-of-the-site",
  enforce: "pre",
  resolveId(id, importer) {
    const isOfPage = importer !== undefined && /\.md(\?|$)/.test(importer) && /^vue(\/|$)/.test(id);
    return isOfPage ? this.resolve(id, path.join(ROOT, "site/package.json"), { skipSelf: true }) : null;
  },
};

export default defineConfig({
  title: "Posthaste",
  description: "Documentation of Posthaste, a durable server for HTTP messages.",
  lang: "en",
  srcDir: ROOT,
  srcExclude: EXCLUDED.map((directory) => `**/${directory}/**`),
  outDir: path.join(ROOT, "target/site"),
  cacheDir: path.join(ROOT, "target/site-cache"),
  // The site of a project often has a path, such as /posthaste/.
  base: process.env.SITE_BASE ?? "/",
  rewrites: sitePath,
  head: [["link", { rel: "icon", href: iconAddress }]],
  markdown: markdownOptions(files, source),
  themeConfig: {
    logo: iconAddress,
    siteTitle: "Posthaste",
    sidebar: sidebar(),
    outline: { level: [2, 3] },
    search: { provider: "local" },
    nav: [
      { text: "Introduction", link: "/introduction" },
      { text: "API", link: "/api" },
      { text: "Compare", link: "/compare" },
      ...(source === undefined ? [] : [{ text: "Source", link: source }]),
    ],
  },
  vite: {
    plugins: [vueOfTheSite],
    publicDir: false,
    server: { watch: { ignored: EXCLUDED.map((directory) => `**/${directory}/**`) } },
  },
});
