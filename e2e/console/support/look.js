// The appearance of pages: findings of axe-core, and pictures.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { mkdir } from "node:fs/promises";
import { createRequire } from "node:module";
import path from "node:path";
import { fileURLToPath } from "node:url";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

/** Directory of the pictures. */
export const PICTURES = fileURLToPath(new URL("../../../target/console-screenshots/", import.meta.url));

/** The windows of the tests: colours depend only on the theme, and the layout on the width. */
export const LOOKS = {
  "1440-light": { viewport: { width: 1440, height: 1000 }, colorScheme: "light" },
  "360-dark": { viewport: { width: 360, height: 800 }, colorScheme: "dark" },
};

/** The serious and critical findings of axe-core. The page must allow its script. */
export async function barriers(page) {
  await page.evaluate(AXE);
  const { violations } = await page.evaluate(() =>
    window.axe.run(document, { resultTypes: ["violations"], runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"] }),
  );
  const grave = violations.filter(({ impact }) => impact === "serious" || impact === "critical");
  return grave.map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html.slice(0, 160)).slice(0, 3).join(" ")}`);
}

/** Whether the page, or a dialog on it, is wider than its window, so that users must scroll in two directions. */
export async function isTooWide(page) {
  return await page.evaluate(() =>
    [document.documentElement, ...document.querySelectorAll("dialog")].some(({ scrollWidth, clientWidth }) => scrollWidth > clientWidth + 1),
  );
}

/** Saves a picture of the page. */
export async function picture(page, name) {
  assert.match(name, /^[a-z0-9-]+$/);
  await mkdir(PICTURES, { recursive: true });
  await page.screenshot({ path: path.join(PICTURES, `${name}.png`), fullPage: true, animations: "disabled" });
}
