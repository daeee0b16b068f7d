"""Reports what changes in the prefix cache to a publisher of a plugin (`quire_kv_event_publishers`), beside the steps.

    PagePool, PageTables ─▶ PageLog ─▶ queue ─▶ thread of EventSender ─▶ publisher

`page_log` makes events of pages and is all that the thread of the steps does; `sender` passes them on; `build` finds
the publisher that `--kv-events-config` names.
"""
