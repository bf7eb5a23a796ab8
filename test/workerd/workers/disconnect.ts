// The test Worker, and it says in its log when the caller of a request has gone.

import jobs from "./jobs.ts";

export default {
  ...jobs,
  fetch: ((request, env, ctx) => {
    // Only there with the compatibility flag enable_request_signal.
    request.signal.addEventListener("abort", () => console.log("the caller has gone"));
    return jobs.fetch(request, env, ctx);
  }) satisfies typeof jobs.fetch,
};
