#include "comm/tcp/receive_queues.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace muonrt {

using Lock = std::unique_lock<std::mutex>;

namespace {

/// Writes a part of a message to its destination. If the size of the message differs from the
/// posted size, only records the size. Returns false if it is not the next part.
bool put(PostedReceive& message, int64_t message_bytes, int64_t offset, const char* payload,
         int64_t bytes) {
  if (message.has_other_size()) return true;
  if (message.arrived != offset) return false;
  message.sent = message_bytes;
  if (message.has_other_size()) return true;
  std::memcpy(static_cast<char*>(message.data) + offset, payload, static_cast<size_t>(bytes));
  message.arrived += bytes;
  return true;
}

}  // namespace

PostedReceive* ReceiveQueues::Channel::open(int32_t from) {
  for (PostedReceive& message : posted)
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
  Channel created;
  created.incoming.resize(size_);
  created.left.resize(size_);
  return channels_.emplace(channel, std::move(created)).first->second;
}

void ReceiveQueues::enter(uint64_t channel) {
  const Lock lock(mutex_);
  at(channel);
}

bool ReceiveQueues::add(const FrameHeader& head, const char* content) {
  const Lock lock(mutex_);
  Channel& channel = at(head.channel);
  if (channel.error) return true;
  Incoming& incoming = channel.incoming[static_cast<size_t>(head.from)];
  const bool first = incoming.arrived == incoming.bytes;
  if (!first && incoming.bytes != head.message_bytes) return false;
  if (head.offset != (first ? 0 : incoming.arrived)) return false;
  PostedReceive* const message = channel.open(head.from);
  if (message) {
    if (!put(*message, head.message_bytes, head.offset, content, head.payload_bytes))
      return false;  // the first part of the message was not written to this destination
    if (message->complete() || message->has_other_size()) wake_.notify_all();
  } else {
    const auto bytes = static_cast<size_t>(head.payload_bytes);
    Early early{head.from, head.message_bytes, head.offset,
                std::make_unique_for_overwrite<char[]>(bytes), head.payload_bytes};
    std::memcpy(early.data.get(), content, bytes);
    channel.early.push_back(std::move(early));
  }
  incoming = {head.message_bytes, head.offset + head.payload_bytes};
  return true;
}

bool ReceiveQueues::has_pending_receives() {
  const Lock lock(mutex_);
  return std::any_of(channels_.begin(), channels_.end(), [](const auto& entry) {
    const Channel& channel = entry.second;
    return !channel.error &&
           !std::all_of(channel.posted.begin(), channel.posted.end(),
                        [](const PostedReceive& message) { return message.complete(); });
  });
}

void ReceiveQueues::left(uint64_t channel, int32_t from) {
  const Lock lock(mutex_);
  Channel& its = at(channel);
  if (!its.error) its.left[static_cast<size_t>(from)] = 1;
  wake_.notify_all();
}

void ReceiveQueues::disconnect(int32_t from, std::string why) noexcept {
  const Lock lock(mutex_);
  auto& reason = disconnected_[static_cast<size_t>(from)];
  if (!reason) reason = std::move(why);
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
  known->second.incoming = {};
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
  its.posted = messages;
  for (auto early = its.early.begin(); early != its.early.end();) {
    PostedReceive* const message = its.open(early->from);
    if (message &&
        !put(*message, early->message_bytes, early->offset, early->data.get(), early->bytes))
      return its.end(invalid_message_error(early->from, "the first part of a message is missing"));
    early = message ? its.early.erase(early) : std::next(early);
  }
}

void ReceiveQueues::cancel_receives(uint64_t channel) noexcept {
  const Lock lock(mutex_);
  if (const auto known = channels_.find(channel); known != channels_.end())
    known->second.posted = {};
}

/// Returns the reason if `message` can no longer arrive.
std::optional<Error> ReceiveQueues::why_missing(Channel& channel,
                                                const PostedReceive& message) const {
  const auto from = static_cast<size_t>(message.from);
  if (message.has_other_size()) {
    channel.end(size_mismatch_error(message.from, message.sent, message.bytes));
    return channel.error;
  }
  if (disconnected_[from])
    return muonrt::disconnected_error(message.from, disconnected_[from]->c_str());
  if (channel.left[from]) return muonrt::disconnected_error(message.from);
  return closed_;
}

void ReceiveQueues::wait_receives(uint64_t channel, Deadline deadline) {
  Lock lock(mutex_);
  Channel& its = at(channel);
  while (true) {
    if (its.error) throw *its.error;
    const PostedReceive* missing = nullptr;
    for (const PostedReceive& message : its.posted) {
      if (message.complete()) continue;
      if (const auto why = why_missing(its, message)) throw *why;
      if (!missing) missing = &message;
    }
    if (!missing) return;
    if (deadline.passed()) throw receive_timeout_error(missing->from);
    wake_.wait_until(lock, deadline.at());
  }
}

}  // namespace muonrt
