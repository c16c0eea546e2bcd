// Every page with data at the limits, in narrow and wide windows: nothing overflows,
// nothing covers another, and pages work by keyboard and by touch.

import assert from "node:assert/strict";
import { test } from "node:test";
import { story } from "../../workflow/js/support/story.js";
import { extreme, extremeWorkflows } from "../support/extreme.js";
import { isTooWide, picture } from "../support/look.js";
import { PAGES } from "../support/pages.js";
import { watched } from "../support/story.js";

const it = watched(story(extremeWorkflows));

let filled;

/** Every page: name, path after `/console`. */
async function pages() {
  filled ??= extreme(it);
  return [...PAGES.map(([path, name]) => [name.toLowerCase().replaceAll(" ", "-"), path]), ...(await filled)];
}

/** Opens every page in a window; `check` returns the problems of one. */
async function look(options, check) {
  const wrong = [];
  const all = await pages();
  const visitor = await it.browser.visitor(it.server.url, options);
  try {
    for (const [name, path] of all) {
      await visitor.page.goto(`/console${path}`);
      for (const fault of await check(visitor.page, name)) wrong.push(`${name}: ${fault}`);
    }
    visitor.innocent();
  } finally {
    await visitor.leave();
  }
  assert.deepEqual(wrong, []);
}

/** Descriptions of elements that overflow or cover another one. */
async function misplaced(page) {
  const found = await page.evaluate(() => {
    const named = (element) => `<${element.localName} class="${element.className}"> ${element.textContent.trim().slice(0, 40)}`;
    const boxes = [...document.querySelectorAll(".scroll")].filter((box) => box.scrollWidth > box.clientWidth + 1);
    const hidden = boxes.map((box) => `${named(box)} hides ${box.scrollWidth - box.clientWidth} pixels`);
    // Interactive elements, from top to bottom. Sticky elements cover others intentionally while the page scrolls.
    const floats = (element) => element !== null && (["sticky", "fixed"].includes(getComputedStyle(element).position) || floats(element.parentElement));
    const all = [...document.querySelectorAll("main :is(a, button, input, select, textarea, summary)")];
    const pressed = all.filter((element) => !floats(element));
    const places = pressed.map((element) => [element, element.getBoundingClientRect()]).filter(([element]) => element.checkVisibility());
    places.sort(([, one], [, other]) => one.top - other.top);
    const covered = [];
    places.forEach(([element, place], index) => {
      for (const [other, next] of places.slice(index + 1)) {
        if (next.top > place.bottom - 1) break;
        const isOn = Math.min(place.right, next.right) - Math.max(place.left, next.left) > 1;
        if (isOn && !element.contains(other) && !other.contains(element)) covered.push(`${named(element)} lies on ${named(other)}`);
      }
    });
    return [...hidden, ...covered.slice(0, 3)];
  });
  return (await isTooWide(page)) ? ["wider than the window", ...found] : found;
}

/** Descriptions of elements that are too small for touch. */
async function small(page) {
  return await page.evaluate(() => {
    const pressed = [...document.querySelectorAll("button, .button, .top nav a, select, input:not([type=hidden], [type=checkbox], [type=radio])")];
    const places = pressed.filter((element) => element.checkVisibility()).map((element) => [element, element.getBoundingClientRect().height]);
    return places.filter(([, height]) => height < 38).map(([element, height]) => `${element.outerHTML.slice(0, 80)} is ${height} high`).slice(0, 3);
  });
}

test("on a telephone nothing overflows, buttons are large enough, and each page has its own title", async () => {
  const titles = new Map();
  await look({ viewport: { width: 360, height: 800 }, hasTouch: true, isMobile: true }, async (page, name) => {
    const title = await page.title();
    const isOfAnother = titles.has(title) && !name.startsWith("no-such") && name !== "wrong-filter";
    const twice = isOfAnother ? [`has the title of ${titles.get(title)}`] : [];
    titles.set(title, name);
    return [...(await misplaced(page)), ...(await small(page)), ...twice];
  });
});

for (const width of [768, 1280]) {
  test(`nothing is wider than its place or covers another, at ${width} pixels`, async () => {
    await look({ viewport: { width, height: 900 }, colorScheme: width === 768 ? "dark" : "light" }, async (page, name) => {
      // Not on a telephone, because after a picture the browser assumes a mouse.
      if (["messages", "run", "dlq-entries"].includes(name)) await picture(page, `extreme-${name}-${width}`);
      return await misplaced(page);
    });
  });
}

test("by keyboard the focus is visible, and the menu can be skipped", async () => {
  const { page, visitor } = it;
  await pages();
  await page.setViewportSize({ width: 1280, height: 400 });
  await visitor.open("/queues");
  await page.keyboard.press("Tab");
  const skip = page.getByRole("link", { name: "Skip to content" });
  assert.deepEqual(await page.evaluate(() => document.activeElement.textContent), "Skip to content");
  assert.ok((await skip.boundingBox()).x >= 0, "it is seen");
  await page.keyboard.press("Enter");
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.closest("main") !== null), true, "after the menu");
  const walk = async (key, steps) => {
    for (let n = 0; n < steps; n += 1) {
      const [outline, isSeen] = await page.evaluate(() => {
        const element = document.activeElement;
        const { outlineStyle, outlineWidth } = getComputedStyle(element);
        const { left, top, right, bottom } = element.getBoundingClientRect();
        const corners = [[left + 3, top + 3], [right - 3, bottom - 3]].map(([x, y]) => document.elementFromPoint(x, y));
        return [`${outlineStyle} ${outlineWidth}`, corners.every((there) => there && (element.contains(there) || there.contains(element)))];
      });
      assert.equal(outline, "solid 2px");
      assert.ok(isSeen, `what has the focus is in the window and nothing is on it, ${key} ${n}`);
      await page.keyboard.press(key);
    }
  };
  await walk("Tab", 45);
  // Upwards the header is in the way.
  await walk("Shift+Tab", 45);
});

test("cells of a narrow row have the names of their columns", async () => {
  await it.visitor.open("/queues");
  assert.equal(await it.row("invoices-1").getByRole("cell").nth(1).getAttribute("data-label"), "Lag");
});
