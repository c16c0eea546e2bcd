import { createWorkflow, serveMany } from "@upstash/workflow/nextjs";
import { family } from "../../../../workflows.js";

export const { POST } = serveMany(family(createWorkflow));
