// Every page of the menu: the path behind `/console`, and its heading.

export const PAGES = [
  ["", "Now"],
  ["/messages", "Messages"],
  ["/tail", "Live tail"],
  ["/dlq", "DLQ"],
  ["/queues", "Queues"],
  ["/flow-control", "Flow control"],
  ["/schedules", "Schedules"],
  ["/url-groups", "URL groups"],
  ["/workflows", "Workflows"],
  ["/send", "Send"],
  ["/settings", "Settings"],
];
