#include "comm/inboxes.hpp"

#include <cstring>

namespace muonrt {

using Lock = std::unique_lock<std::mutex>;

bool Inboxes::add(uint64_t channel, int32_t from, int64_t message_bytes, int64_t offset,
                  Piece piece) {
  const Lock lock(mutex_);
  if (errors_.count(channel)) return true;
  auto& waiting = messages_[{channel, from}];
  const bool first = waiting.empty() || waiting.back().arrived == waiting.back().bytes;
  if (first) {
    if (offset != 0) return false;
    waiting.push_back({message_bytes, 0, {}});
  }
  Message& message = waiting.back();
  if (message.bytes != message_bytes || message.arrived != offset) return false;
  message.arrived += piece.bytes;
  message.pieces.push_back(std::move(piece));
  if (first || message.arrived == message.bytes) wake_.notify_all();
  return true;
}

void Inboxes::left(uint64_t channel, int32_t from) {
  const Lock lock(mutex_);
  left_.insert({channel, from});
  wake_.notify_all();
}

void Inboxes::gone(int32_t from, std::string why) {
  const Lock lock(mutex_);
  gone_.emplace(from, std::move(why));
  wake_.notify_all();
}

void Inboxes::fail(uint64_t channel, Error error) {
  const Lock lock(mutex_);
  errors_.emplace(channel, std::move(error));
  const auto begin = messages_.lower_bound({channel, INT32_MIN});
  messages_.erase(begin, messages_.upper_bound({channel, INT32_MAX}));
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

std::optional<Error> Inboxes::ended(uint64_t channel) {
  const Lock lock(mutex_);
  const auto error = error_of(channel);
  return error ? error : closed_;
}

void Inboxes::take(uint64_t channel, int32_t from, void* data, int64_t bytes, Deadline deadline) {
  Lock lock(mutex_);
  while (true) {
    if (const auto error = error_of(channel)) throw *error;
    const auto at = messages_.find({channel, from});
    if (at != messages_.end() && !at->second.empty()) {  // empty: what came first was refused
      Message& front = at->second.front();
      const int64_t size = front.bytes;
      if (front.arrived == size) {
        const Message message = std::move(front);
        at->second.pop_front();
        if (at->second.empty()) messages_.erase(at);
        lock.unlock();
        if (size != bytes) throw another_size(from, size, bytes);
        auto* to = static_cast<char*>(data);
        for (const Piece& piece : message.pieces) {
          std::memcpy(to, piece.data.get(), static_cast<size_t>(piece.bytes));
          to += piece.bytes;
        }
        return;
      }
      if (size != bytes) throw another_size(from, size, bytes);
    }
    if (const auto why = gone_.find(from); why != gone_.end())
      throw muonrt::gone(from, why->second);
    if (left_.count({channel, from})) throw muonrt::gone(from);
    if (closed_) throw *closed_;
    if (deadline.passed()) throw not_in_time(from);
    wake_.wait_until(lock, deadline.at());
  }
}

}  // namespace muonrt
