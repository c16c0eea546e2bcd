// A program that still uses version 1.0.0 of the SDK.

import { Client } from "workflow-1-0";
import * as sdk from "workflow-1-0/express";
import { generation } from "../support/generation.js";

generation({ sdk, Client });
