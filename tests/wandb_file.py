"""Reads what wandb keeps of an offline run."""

import struct


def wandb_records(path):
    """Records of an offline run's file, a log of LevelDB's: (crc, length, type) and data, within blocks of 32 KiB."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, whole = path.read_bytes(), 7, b""
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        _, length, part = struct.unpack_from("<IHB", data, place)
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if part in (1, 4):  # the whole of a record, or its end
            record, whole = Record.FromString(whole), b""
            yield record
