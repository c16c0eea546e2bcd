// A program with Hono.

import { args, framework } from "../support/framework.js";
import { Program } from "../support/program.js";
import { story } from "../support/story.js";

framework(story(undefined, { args, program: () => Program.start("apps/hono.js") }), "Hono");
