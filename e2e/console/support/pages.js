// Every page of the menu: the path after `/console`, and its heading.

export const PAGES = [
  ["", "Overview"],
  ["/messages", "Messages"],
  ["/tail", "Live logs"],
  ["/dlq", "DLQ"],
  ["/queues", "Queues"],
  ["/flow-control", "Flow control"],
  ["/schedules", "Schedules"],
  ["/url-groups", "URL groups"],
  ["/workflows", "Workflows"],
  ["/send", "Send"],
  ["/settings", "Settings"],
];
