// A program with Next.js: its App Router in `app/`, its Pages Router in `pages/`.

import { fileURLToPath } from "node:url";

export default {
  eslint: { ignoreDuringBuilds: true },
  // What of node_modules the program needs is of no interest here, and takes half of a build to find out.
  outputFileTracingRoot: fileURLToPath(new URL(".", import.meta.url)),
};
