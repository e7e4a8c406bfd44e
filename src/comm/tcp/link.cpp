#include "comm/tcp/link.hpp"

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace muonrt {

namespace {

constexpr size_t kControlBytes = sizeof(FrameHeader) + sizeof(ErrorFrameHeader) + kTextLimit;
constexpr size_t kMaxControlBytes = size_t{8} << 20;  // limit for bytes that wait for a peer that
                                                      // does not read

}  // namespace

void Link::allocate() {
  text = std::make_unique_for_overwrite<char[]>(sizeof(ErrorFrameHeader) + kTextLimit);
  control.reserve(2 * kControlBytes);
}

void Link::close(std::string_view reason) noexcept {
  try {
    why = reason;
  } catch (const std::bad_alloc&) {
  }
  socket = Socket();
  state = State::kClosed;
  part_data = nullptr;
  control.clear();
  payload_left = 0;
}

void Link::queue(const FrameHeader& frame, const void* content) noexcept {
  if (state != State::kOpen || !writable) return;
  const auto bytes = static_cast<size_t>(frame.payload_bytes);
  const FrameHeader summed = with_checksums(frame, content);
  try {
    if (control.size() > kMaxControlBytes) return close("the rank reads nothing");
    if (control_at > kControlBytes) {
      control.erase(0, control_at);
      control_at = 0;
    }
    control.append(reinterpret_cast<const char*>(&summed), sizeof summed);
    if (bytes > 0) control.append(static_cast<const char*>(content), bytes);
  } catch (const std::bad_alloc&) {  // the peer detects the end of the connection instead
    close("this rank is out of memory");
  }
}

void Link::stop_writing() noexcept {
  writable = false;
  part_data = nullptr;
  control.clear();
  control_at = 0;
}

Progress Link::write() {
  constexpr auto kHeadBytes = static_cast<int64_t>(sizeof part);
  while (!is_idle()) {
    iovec parts[3];
    size_t n = 0;
    const auto add = [&](const void* data, size_t bytes) {
      if (bytes > 0) parts[n++] = {const_cast<void*>(data), bytes};
    };
    const bool begun = part_data && part_at > 0;
    if (!begun) add(control.data() + control_at, control.size() - control_at);
    const size_t first = begun ? 0 : control.size() - control_at;
    if (part_data) {
      const int64_t in_head = std::min(part_at, kHeadBytes), in_content = part_at - in_head;
      add(reinterpret_cast<const char*>(&part) + in_head,
          static_cast<size_t>(kHeadBytes - in_head));
      add(part_data + in_content, static_cast<size_t>(part.payload_bytes - in_content));
    }
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = n;
    const ssize_t written = sendmsg(socket.fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (written < 0) return after_error();
    const size_t of_control = std::min(first, static_cast<size_t>(written));
    if (of_control > 0 && (control_at += of_control) == control.size()) {
      control.clear();
      control_at = 0;
    }
    if (!part_data) continue;
    part_at += written - static_cast<int64_t>(of_control);
    if (part_at < kHeadBytes + part.payload_bytes) continue;
    part_data = nullptr;
    return Progress::kDone;  // another part may follow
  }
  return Progress::kDone;
}

void Link::release_part() noexcept {
  if (part_at == 0) part_data = nullptr;
  if (!part_data || part_data == rest.data()) return;
  try {
    rest.assign(part_data, static_cast<size_t>(part.payload_bytes));
    part_data = rest.data();
  } catch (const std::bad_alloc&) {
    close("this rank is out of memory");
  }
}

Progress Link::fill(Stage& stage, bool& all) {
  const size_t direct = sink == Sink::kDiscard ? 0 : static_cast<size_t>(payload_left);
  // After a payload, reads only the next header. The payload after that header can then also be
  // read directly into its destination.
  const size_t most = direct > 0 ? sizeof head : Stage::kBytes;
  iovec parts[2] = {{sink_at, direct}, {stage.data.get(), most}};
  msghdr message{};
  message.msg_iov = direct > 0 ? parts : parts + 1;
  message.msg_iovlen = direct > 0 ? 2 : 1;
  const ssize_t n = recvmsg(socket.fd(), &message, MSG_DONTWAIT);
  if (n < 0) return after_error();
  if (n == 0) return Progress::kEnded;
  const auto bytes = static_cast<size_t>(n), to_sink = std::min(bytes, direct);
  if (to_sink > 0) count(sink_at, static_cast<int64_t>(to_sink));
  stage.begin = 0;
  stage.end = bytes - to_sink;
  all = stage.end == most;
  return Progress::kDone;
}

void Link::count(const char* data, int64_t bytes) {
  sum = crc32c(data, static_cast<size_t>(bytes), sum);
  payload_left -= bytes;
  if (sink_at) sink_at += bytes;
}

bool Link::take_payload(Stage& stage) {
  const int64_t bytes = std::min(payload_left, static_cast<int64_t>(stage.end - stage.begin));
  const char* const from = stage.data.get() + stage.begin;
  if (sink != Sink::kDiscard && bytes > 0) std::memcpy(sink_at, from, static_cast<size_t>(bytes));
  count(from, bytes);
  stage.begin += static_cast<size_t>(bytes);
  return payload_left == 0;
}

bool Link::take_header(Stage& stage) {
  const size_t bytes = std::min(sizeof head - head_bytes, stage.end - stage.begin);
  std::memcpy(reinterpret_cast<char*>(&head) + head_bytes, stage.data.get() + stage.begin, bytes);
  head_bytes += bytes;
  stage.begin += bytes;
  if (head_bytes < sizeof head) return false;
  head_bytes = 0;
  payload_left = head.payload_bytes;
  sink = Sink::kDiscard;
  sink_at = nullptr;
  sum = 0;
  return true;
}

}  // namespace muonrt
