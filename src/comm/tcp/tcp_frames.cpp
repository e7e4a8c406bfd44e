// Selects the frame that a TcpWorld writes next, and processes the frames that it has read.
#include <algorithm>
#include <cstring>

#include "base/peer_status.hpp"
#include "comm/tcp/tcp_world.hpp"

namespace muonrt {

namespace {

constexpr int kReads = 16;  // number of reads of one connection before the next connection is read

template <class... What>
Error invalid_frame_error(int32_t from, const What&... what) {
  return make_error(Status::kComm, "received an invalid frame from rank ", from, ": ", what...,
                    "; use the same build of muonrt on all ranks");
}

Error size_error(int32_t from, int64_t sent, int64_t expected) {
  return make_error(Status::kMismatch, "rank ", from, " sent ", sent,
                    " bytes, but this rank expected ", expected,
                    "; pass the same size on both ranks");
}

/// Returns the error in the payload of a frame. Replaces control characters in its text with '?'.
Error error_in(const FrameHeader& head, const char* content, int size) {
  ErrorFrameHeader error;
  std::memcpy(&error, content, sizeof error);
  if (!is_error(error.status) || error.rank < -1 || error.rank >= size)
    return invalid_frame_error(head.from, "an error has status ", error.status, " and rank ",
                               error.rank);
  const auto printable_text = [&] {
    std::string text(content + sizeof error, content + head.payload_bytes);
    std::replace_if(
        text.begin(), text.end(), [](char c) { return is_control(c) && c != '\n'; }, '?');
    return text;
  };
  return error_with_message(static_cast<Status>(error.status), printable_text, error.rank)
      .reported_by_rank(head.from);
}

}  // namespace

/// Grants the message that the running operation of the channel expects from the peer.
void TcpWorld::grant(Channel& channel, int32_t peer) {
  const Message& receive = channel.of(peer).receive;
  if (!receive.pending) return;
  // If the link is not open, open() calls this function again.
  link(peer).queue({.kind = FrameKind::kGrant,
                    .channel = channel.id,
                    .from = rank_,
                    .to = peer,
                    .number = receive.number,
                    .message_bytes = receive.bytes});
}

/// Copies a message that arrived before its receive was posted.
void TcpWorld::receive_early(Channel& channel, int32_t from) {
  Peer& peer = channel.of(from);
  Message& receive = peer.receive;
  if (peer.early_bytes == 0 || !receive.pending) return;
  if (peer.early_bytes != receive.bytes)
    return fail(channel, size_error(from, peer.early_bytes, receive.bytes));
  std::memcpy(receive.data, peer.early.get(), static_cast<size_t>(receive.bytes));
  peer.early_bytes = 0;
  channel.complete(receive);
}

/// Selects the next part of a message to the peer. Returns false if there is nothing to write now.
bool TcpWorld::next_part(int32_t to) {
  Link& l = link(to);
  for (auto& [id, channel] : channels_) {
    Peer& peer = channel.of(to);
    Message& m = peer.send;
    if (!m.pending || channel.error || m.done == m.bytes) continue;
    const bool granted = peer.granted > m.number;
    const bool early = m.bytes <= kEarlyBytes && m.number > 0 && peer.granted == m.number;
    if (!granted && !early) continue;
    if (granted && peer.granted_bytes != m.bytes) {
      fail(channel, make_error(Status::kMismatch, "rank ", to, " expects ", peer.granted_bytes,
                               " bytes, but this rank sent ", m.bytes,
                               "; pass the same size on both ranks"));
      continue;
    }
    l.part_data = m.data + m.done;
    l.part = with_checksums({.kind = FrameKind::kData,
                             .channel = id,
                             .from = rank_,
                             .to = to,
                             .number = m.number,
                             .message_bytes = m.bytes,
                             .offset = m.done,
                             .payload_bytes = std::min(kMaxPayloadBytes, m.bytes - m.done)},
                            l.part_data);
    l.part_at = 0;
    m.done += l.part.payload_bytes;
    return true;
  }
  return !l.control.empty();
}

void TcpWorld::write(int32_t to) {
  Link& l = link(to);
  while (l.state == Link::State::kOpen && l.writable && (l.part_data || next_part(to))) {
    const bool part = l.part_data;
    const Progress progress = l.write();
    // The link itself is closed later, when read() has read everything that the peer has sent.
    if (progress == Progress::kEnded) return l.stop_writing();
    if (progress == Progress::kBlocked) return;
    if (!part || l.part_data) continue;
    Channel* const channel = find(l.part.channel);
    if (!channel) continue;
    Message& m = channel->of(to).send;
    if (m.pending && m.number == l.part.number && m.done == m.bytes) channel->complete(m);
  }
}

void TcpWorld::read(int32_t from) {
  Link& l = link(from);
  bool more = true;
  for (int reads = 0;
       reads < kReads && (more || l.payload_left > 0) && l.state == Link::State::kOpen; ++reads) {
    const bool begun = l.payload_left > 0;
    const Progress progress = l.fill(stage_, more);
    if (progress == Progress::kEnded) end_link(from, "");
    if (progress != Progress::kDone) return;
    if (begun && l.payload_left == 0) process_frame(from);
    while (!stage_.empty() && l.state == Link::State::kOpen) {
      if (l.payload_left > 0) {
        if (l.take_payload(stage_)) process_frame(from);
      } else if (l.take_header(stage_)) {
        process_header(from);
      }
    }
  }
}

void TcpWorld::process_header(int32_t from) {
  Link& l = link(from);
  if (const char* const problem = frame_problem(l.head, from, rank_, size_))
    return end_link(from, problem);
  if (l.payload_left == 0) return process_frame(from);
  if (l.head.kind == FrameKind::kData) {
    find_destination(from);
  } else {
    l.sink = Link::Sink::kText;
    l.sink_at = l.text.get();
  }
}

/// Finds the destination for the payload of a part of a message: its receive, the memory for an
/// early message, or nothing.
void TcpWorld::find_destination(int32_t from) {
  Link& l = link(from);
  const FrameHeader& head = l.head;
  Channel* const channel = find(head.channel);
  if (!channel || error_of(*channel)) return;
  Peer& peer = channel->of(from);
  const Message& m = peer.receive;
  l.sink_channel = channel->id;
  if (m.pending && head.number == m.number) {
    if (head.message_bytes != m.bytes)
      return fail(*channel, size_error(from, head.message_bytes, m.bytes));
    if (head.offset != m.done)
      return fail(*channel, invalid_frame_error(from, "a part of a message is out of order"));
    l.sink = Link::Sink::kReceive;
    l.sink_at = m.data + m.done;
    return;
  }
  const bool fits = peer.early && peer.early_bytes == 0 && head.message_bytes <= kEarlyBytes;
  if (head.number != peer.received || !fits)
    return fail(*channel, invalid_frame_error(from, "no receive of this rank expects a message"));
  l.sink = Link::Sink::kEarly;
  l.sink_at = peer.early.get();
}

void TcpWorld::process_frame(int32_t from) {
  Link& l = link(from);
  const FrameHeader& head = l.head;
  const bool intact = l.sum == head.content_sum;
  const char* const content = l.text.get();
  Channel* const channel = find(head.channel);
  switch (head.kind) {
    case FrameKind::kData: {
      if (!channel || error_of(*channel) || l.sink == Link::Sink::kDiscard) return;
      if (!intact)
        return fail(*channel,
                    make_error(Status::kComm, "the checksum of a message from rank ", from,
                               " is wrong, so data was corrupted in transit; check the "
                               "network and the memory of both machines"));
      Peer& peer = channel->of(from);
      if (l.sink == Link::Sink::kEarly) {
        peer.early_bytes = head.message_bytes;
        // The receive of this message may have been posted after the header was read.
        if (peer.receive.number == head.number) receive_early(*channel, from);
        return;
      }
      peer.receive.done += head.payload_bytes;
      if (peer.receive.done == peer.receive.bytes) channel->complete(peer.receive);
      return;
    }
    case FrameKind::kGrant: {
      if (!channel) {  // this rank has left the channel before the connection opened
        l.queue({.kind = FrameKind::kLeft, .channel = head.channel, .from = rank_, .to = from});
        return write(from);
      }
      Peer& peer = channel->of(from);
      if (head.number != peer.granted || head.number > peer.sent)
        return fail(*channel, invalid_frame_error(from, "a grant is out of order"));
      peer.granted = head.number + 1;
      peer.granted_bytes = head.message_bytes;
      return write(from);
    }
    case FrameKind::kError:
      if (!intact)
        return end_link(from,
                        "the checksum of an error is wrong, so data was corrupted in transit");
      if (!channel || !channel->error) forward(from, head, content);
      if (channel) fail(*channel, error_in(head, content, size_));
      return;
    case FrameKind::kLeft: {
      const bool forwarded = head.from != from;
      forward(from, head);
      if (head.channel == 0 && !forwarded) l.goodbye = true;
      if (!channel) return;
      channel->of(head.from).*(forwarded ? &Peer::left_forwarded : &Peer::left) = true;
      return wake_all();
    }
    case FrameKind::kDisconnected:
      if (auto& since = link(head.from).disconnected; !since) since = Clock::now();
      return wake_all();
  }
}

/// On rank 0: forwards a frame that is for all ranks to all ranks except its sender.
void TcpWorld::forward(int32_t from, const FrameHeader& head, const void* content) noexcept {
  if (rank_ == 0 && head.to == kToAll) send_to_all(head, content, from);
}

}  // namespace muonrt
