// A program with Next.js, built once: its App Router and its Pages Router.

import { args, framework } from "../support/framework.js";
import { Program, build } from "../support/program.js";
import { story } from "../support/story.js";

const NEXT = "node_modules/next/dist/bin/next";

const it = story(undefined, {
  args,
  program: async () => {
    await build(NEXT, "build", "apps/next");
    return await Program.start(NEXT, "start", "apps/next", "--hostname=localhost", "--port=0");
  },
});

framework(it, "App Router");
// Its parser turns an empty body into an object, so the signature is wrong.
framework(it, "Pages Router", { base: "/api", fetches: false });
