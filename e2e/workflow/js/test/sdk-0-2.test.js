// A program that still uses version 0.2.23 of the SDK.

import { Client } from "workflow-0-2";
import * as sdk from "workflow-0-2/express";
import { generation } from "../support/generation.js";

generation({ sdk, Client });
