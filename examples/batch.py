"""Answers many requests as a batch, with the `openai` package: upload, wait, read.

platform serve demo-chat &
python examples/batch.py http://127.0.0.1:8000/v1
"""

import json
import sys
import time

from openai import OpenAI

client = OpenAI(base_url=sys.argv[1], api_key="none")


def line(number: int) -> str:
    """A request for a sum, as a line of the file."""
    messages = [{"role": "user", "content": f"What is {number} plus 30?"}]
    body = {"model": "demo-chat", "messages": messages, "temperature": 0, "max_tokens": 40}
    request = {"custom_id": f"sum-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
    return json.dumps(request) + "\n"


content = "".join(map(line, range(10, 15))).encode()
file = client.files.create(file=("sums.jsonl", content), purpose="batch")
batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
while batch.status in ("validating", "in_progress", "finalizing"):
    time.sleep(0.2)
    batch = client.batches.retrieve(batch.id)
if batch.output_file_id is None:
    sys.exit(f"{batch.status}: {batch.errors}")

for text in client.files.content(batch.output_file_id).text.splitlines():
    answer = json.loads(text)
    print(answer["custom_id"], answer["response"]["body"]["choices"][0]["message"]["content"])
