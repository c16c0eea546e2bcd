import { servePagesRouter } from "@upstash/workflow/nextjs";
import { failed, order } from "../../../workflows.js";

export default servePagesRouter(order, { failureFunction: failed }).handler;
