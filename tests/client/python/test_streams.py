"""The blocking API against a server of the build: what comes back is what openssl makes of it."""
import unittest

import millrace
from server import CONTRACT, KEY, Server, draw, openssl_cbc


class Streams(unittest.TestCase):
    def test_a_stream(self) -> None:
        packets = [draw.randbytes(draw.randrange(1, CONTRACT.packet_bytes)) for _ in range(8)]
        with Server() as server, millrace.connect(server.address, timeout=60) as client:
            with client.open(CONTRACT, KEY) as stream:
                chain = stream.state.opened.iv
                for packet in packets:
                    result = stream.encrypt(packet)
                    self.assertEqual(result.ciphertext, openssl_cbc(packet, chain, pad=True))
                    chain = result.ciphertext[-16:]
                closed = stream.close()
        self.assertEqual((closed.reason, closed.packets), (millrace.CloseReason.ASKED, len(packets)))


if __name__ == "__main__":
    unittest.main()
