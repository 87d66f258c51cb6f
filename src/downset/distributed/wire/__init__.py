"""The protocol between devices: how frames, rows and results travel.

1. Connections (`connection`): TLS 1.3, both ends show a certificate of one authority. The end that opens a connection
   writes, the other one reads; two devices that exchange rows have two connections. The first message is a Hello.
2. Messages (`messages`): two lengths, a header in MessagePack, and rows as bytes behind it.
3. Credits: for every transfer of a plan, below which frame its rows may be sent. A limit only rises, so that a credit
   that comes twice or late changes nothing. Credits travel on the connection of the opposite way.
4. Endpoints (`endpoint`): a thread that accepts, one for each connection that reads (`Incoming`), and a `Sender` for
   each peer.

A receiver always reads, so no sender waits for a task of another device. A run is an epoch: its connections are opened
for it and end with it, and every header has its number.
"""
