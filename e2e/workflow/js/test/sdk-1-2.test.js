// A program that still uses version 1.2.1 of the SDK.

import { Client } from "workflow-1-2";
import * as sdk from "workflow-1-2/express";
import { generation } from "../support/generation.js";

generation({ sdk, Client });
