#include "comm/tcp/receive_queues.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace muonrt {

using Lock = std::unique_lock<std::mutex>;

namespace {

/// A piece of `message`. Of one of another size it keeps that alone, and pieces behind it are
/// dropped. False: it is not the next one.
bool put(PostedReceive& message, int64_t message_bytes, int64_t offset, const char* piece,
         int64_t bytes) {
  if (message.has_other_size()) return true;
  if (message.arrived != offset) return false;
  message.sent = message_bytes;
  if (message.has_other_size()) return true;
  std::memcpy(static_cast<char*>(message.data) + offset, piece, static_cast<size_t>(bytes));
  message.arrived += bytes;
  return true;
}

}  // namespace

PostedReceive* ReceiveQueues::Channel::open(int32_t from) {
  for (PostedReceive& message : awaited)
    if (message.from == from && !message.complete()) return &message;
  return nullptr;
}

void ReceiveQueues::Channel::end(Error why) {
  if (!error) error = std::move(why);
  early.clear();
}

ReceiveQueues::Channel& ReceiveQueues::at(uint64_t channel) {
  const auto known = channels_.find(channel);
  if (known != channels_.end()) return known->second;
  Channel made;
  made.coming.resize(size_);
  made.left.resize(size_);
  return channels_.emplace(channel, std::move(made)).first->second;
}

void ReceiveQueues::enter(uint64_t channel) {
  const Lock lock(mutex_);
  at(channel);
}

bool ReceiveQueues::add(const FrameHeader& head, const char* content) {
  const Lock lock(mutex_);
  Channel& channel = at(head.channel);
  if (channel.error) return true;
  Coming& coming = channel.coming[static_cast<size_t>(head.from)];
  const bool first = coming.arrived == coming.bytes;
  if (!first && coming.bytes != head.message_bytes) return false;
  if (head.offset != (first ? 0 : coming.arrived)) return false;
  PostedReceive* const message = channel.open(head.from);
  if (message) {
    if (!put(*message, head.message_bytes, head.offset, content, head.payload_bytes))
      return false;  // its begin came to another place
    if (message->complete() || message->has_other_size()) wake_.notify_all();
  } else {
    const auto bytes = static_cast<size_t>(head.payload_bytes);
    Early early{head.from, head.message_bytes, head.offset,
                std::make_unique_for_overwrite<char[]>(bytes), head.payload_bytes};
    std::memcpy(early.data.get(), content, bytes);
    channel.early.push_back(std::move(early));
  }
  coming = {head.message_bytes, head.offset + head.payload_bytes};
  return true;
}

bool ReceiveQueues::has_pending_receives() {
  const Lock lock(mutex_);
  return std::any_of(channels_.begin(), channels_.end(), [](const auto& entry) {
    const Channel& channel = entry.second;
    return !channel.error &&
           !std::all_of(channel.awaited.begin(), channel.awaited.end(),
                        [](const PostedReceive& message) { return message.complete(); });
  });
}

void ReceiveQueues::left(uint64_t channel, int32_t from) {
  const Lock lock(mutex_);
  Channel& its = at(channel);
  if (!its.error) its.left[static_cast<size_t>(from)] = 1;
  wake_.notify_all();
}

void ReceiveQueues::gone(int32_t from, std::string why) noexcept {
  const Lock lock(mutex_);
  auto& gone = gone_[static_cast<size_t>(from)];
  if (!gone) gone = std::move(why);
  wake_.notify_all();
}

void ReceiveQueues::fail(uint64_t channel, Error error) {
  const Lock lock(mutex_);
  at(channel).end(std::move(error));
  wake_.notify_all();
}

void ReceiveQueues::leave(uint64_t channel) noexcept {
  const Lock lock(mutex_);
  const auto known = channels_.find(channel);
  if (known == channels_.end()) return;
  known->second.end(Error(Status::kInvalidState));
  known->second.coming = {};
  known->second.left = {};
}

void ReceiveQueues::close(Error error) noexcept {
  const Lock lock(mutex_);
  if (!closed_) closed_ = std::move(error);
  wake_.notify_all();
}

std::optional<Error> ReceiveQueues::error_of(uint64_t channel) const {
  const auto known = channels_.find(channel);
  return known == channels_.end() ? std::nullopt : known->second.error;
}

std::optional<Error> ReceiveQueues::failed(uint64_t channel) {
  const Lock lock(mutex_);
  return error_of(channel);
}

std::optional<Error> ReceiveQueues::ended(uint64_t channel) {
  const Lock lock(mutex_);
  const auto error = error_of(channel);
  return error ? error : closed_;
}

void ReceiveQueues::post_receives(uint64_t channel, std::span<PostedReceive> messages) {
  const Lock lock(mutex_);
  Channel& its = at(channel);
  its.awaited = messages;
  for (auto early = its.early.begin(); early != its.early.end();) {
    PostedReceive* const message = its.open(early->from);
    if (message &&
        !put(*message, early->message_bytes, early->offset, early->data.get(), early->bytes))
      return its.end(invalid_message_error(early->from, "a message whose begin was not taken"));
    early = message ? its.early.erase(early) : std::next(early);
  }
}

void ReceiveQueues::cancel_receives(uint64_t channel) noexcept {
  const Lock lock(mutex_);
  if (const auto known = channels_.find(channel); known != channels_.end())
    known->second.awaited = {};
}

/// Why `message` will not come any more.
std::optional<Error> ReceiveQueues::why_not(Channel& channel, const PostedReceive& message) const {
  const auto from = static_cast<size_t>(message.from);
  if (message.has_other_size()) {
    channel.end(size_mismatch_error(message.from, message.sent, message.bytes));
    return channel.error;
  }
  if (gone_[from]) return muonrt::disconnected_error(message.from, gone_[from]->c_str());
  if (channel.left[from]) return muonrt::disconnected_error(message.from);
  return closed_;
}

void ReceiveQueues::wait_receives(uint64_t channel, Deadline deadline) {
  Lock lock(mutex_);
  Channel& its = at(channel);
  while (true) {
    if (its.error) throw *its.error;
    const PostedReceive* missing = nullptr;
    for (const PostedReceive& message : its.awaited) {
      if (message.complete()) continue;
      if (const auto why = why_not(its, message)) throw *why;
      if (!missing) missing = &message;
    }
    if (!missing) return;
    if (deadline.passed()) throw receive_timeout_error(missing->from);
    wake_.wait_until(lock, deadline.at());
  }
}

}  // namespace muonrt
