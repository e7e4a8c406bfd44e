#include "comm/inboxes.hpp"

#include <cstring>

namespace muonrt {

using Lock = std::unique_lock<std::mutex>;

void Inboxes::deliver(uint64_t channel, int32_t from, Message message) {
  const Lock lock(mutex_);
  messages_[{channel, from}].push_back(std::move(message));
  wake_.notify_all();
}

void Inboxes::left(uint64_t channel, int32_t from) {
  const Lock lock(mutex_);
  left_.insert({channel, from});
  wake_.notify_all();
}

void Inboxes::gone(int32_t from) {
  const Lock lock(mutex_);
  gone_.insert(from);
  wake_.notify_all();
}

void Inboxes::fail(uint64_t channel, Error error) {
  const Lock lock(mutex_);
  errors_.emplace(channel, std::move(error));
  wake_.notify_all();
}

void Inboxes::close(Error error) {
  const Lock lock(mutex_);
  if (!closed_) closed_ = std::move(error);
  wake_.notify_all();
}

std::optional<Error> Inboxes::error_of(uint64_t channel) const {
  const auto at = errors_.find(channel);
  return at == errors_.end() ? std::nullopt : std::optional<Error>(at->second);
}

std::optional<Error> Inboxes::failed(uint64_t channel) {
  const Lock lock(mutex_);
  return error_of(channel);
}

void Inboxes::take(uint64_t channel, int32_t from, void* data, int64_t bytes, Deadline deadline) {
  Lock lock(mutex_);
  while (true) {
    if (const auto error = error_of(channel)) throw *error;
    auto& waiting = messages_[{channel, from}];
    if (!waiting.empty()) {
      const Message message = std::move(waiting.front());
      waiting.pop_front();
      if (waiting.empty()) messages_.erase({channel, from});
      lock.unlock();
      const auto size = static_cast<int64_t>(message.size());
      if (size != bytes) throw another_size(from, size, bytes);
      std::memcpy(data, message.data(), message.size());
      return;
    }
    if (left_.count({channel, from}) || gone_.count(from)) throw muonrt::gone(from);
    if (closed_) throw *closed_;
    if (deadline.passed()) throw not_in_time(from);
    wake_.wait_until(lock, deadline.at());
  }
}

}  // namespace muonrt
