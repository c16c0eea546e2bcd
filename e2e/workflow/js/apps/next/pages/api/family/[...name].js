import { createWorkflowPagesRouter, serveManyPagesRouter } from "@upstash/workflow/nextjs";
import { family } from "../../../../workflows.js";

export default serveManyPagesRouter(family(createWorkflowPagesRouter)).handler;

// Otherwise the router rejects more than 1 MB.
export const config = { api: { bodyParser: { sizeLimit: "16mb" } } };
