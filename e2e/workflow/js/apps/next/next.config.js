// A program with Next.js: its App Router in `app/`, its Pages Router in `pages/`.

import { fileURLToPath } from "node:url";

export default {
  eslint: { ignoreDuringBuilds: true },
  // Tracing the used parts of node_modules is not needed here, and would take half of the build.
  outputFileTracingRoot: fileURLToPath(new URL(".", import.meta.url)),
};
