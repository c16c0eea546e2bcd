import { serve } from "@upstash/workflow/nextjs";
import { failed, order } from "../../../workflows.js";

export const { POST } = serve(order, { failureFunction: failed });
