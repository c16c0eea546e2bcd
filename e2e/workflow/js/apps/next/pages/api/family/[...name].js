import { createWorkflowPagesRouter, serveManyPagesRouter } from "@upstash/workflow/nextjs";
import { family } from "../../../../workflows.js";

export default serveManyPagesRouter(family(createWorkflowPagesRouter)).handler;

// The router refuses more than 1 MB otherwise.
export const config = { api: { bodyParser: { sizeLimit: "16mb" } } };
