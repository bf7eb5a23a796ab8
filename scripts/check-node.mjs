// Says in one line what is wrong when Node is too old. Plain old JavaScript: it has to run on exactly those Nodes.

var needed = [22, 12];
var found = process.versions.node.split(".").map(Number);

if (found[0] < needed[0] || (found[0] === needed[0] && found[1] < needed[1])) {
  console.error(
    "pgclaim needs Node " +
      needed.join(".") +
      " or newer, this is " +
      process.versions.node +
      ". Install Node 24, or on Linux (x64, arm64) run `npm ci` without --omit=optional: the Node it brings is then used.",
  );
  process.exit(1);
}
