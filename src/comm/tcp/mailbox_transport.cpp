#include "comm/tcp/mailbox_transport.hpp"

#include <cstring>

#include "base/hash.hpp"

namespace muonrt {

namespace {

class MailboxTransport final : public Transport {
 public:
  MailboxTransport(std::shared_ptr<Mailbox> mailbox, uint64_t channel)
      : Transport(mailbox->rank(), mailbox->size()), post_(std::move(mailbox)), channel_(channel) {
    awaited_.reserve(static_cast<size_t>(size()));
    post_->enter(channel_);
  }
  ~MailboxTransport() override {
    retire();
    post_->leave(channel_);
  }

  std::string name() const override { return post_->name(); }
  std::optional<Error> published_error() const override { return post_->published_error(channel_); }

 protected:
  void do_exchange(std::span<const SendTo> sends, std::span<const ReceiveFrom> receives) override {
    const Deadline deadline = Deadline::in_ms(timeout_ms());
    named([&] {
      awaited_.clear();
      for (const ReceiveFrom& r : receives) {
        if (r.peer != rank()) awaited_.push_back({r.peer, r.data, r.bytes});
      }
      const ReceiveScope expected(*post_, channel_, awaited_);
      for (const SendTo& s : sends) {
        if (s.peer != rank()) post_->send(channel_, s.peer, s.data, s.bytes, deadline);
      }
      post_->wait_receives(channel_, deadline);
    });
  }

  void do_allgather(const void* mine, void* all, int64_t bytes) override {
    const Deadline deadline = Deadline::in_ms(timeout_ms());
    auto* const out = static_cast<char*>(all);
    const int64_t total = bytes * size();
    named([&] {
      std::memcpy(out + rank() * bytes, mine, static_cast<size_t>(bytes));
      awaited_.clear();
      if (rank() > 0) awaited_.push_back({0, out, total});
      for (int32_t r = 1; rank() == 0 && r < size(); ++r)
        awaited_.push_back({r, out + r * bytes, bytes});
      const ReceiveScope expected(*post_, channel_, awaited_);
      if (rank() > 0) post_->send(channel_, 0, mine, bytes, deadline);
      post_->wait_receives(channel_, deadline);
      for (int32_t r = 1; rank() == 0 && r < size(); ++r)
        post_->send(channel_, r, out, total, deadline);
    });
  }

  std::unique_ptr<Transport> do_duplicate() override {
    // The same on every rank, and another than that of any other duplicate.
    Hash child;
    child.value(static_cast<int64_t>(channel_));
    child.value(operation().ordinal);
    auto out = std::make_unique<MailboxTransport>(post_, child.digest());
    confirm_duplicate(*out);
    return out;
  }

  void publish(const Error& error) noexcept override { post_->publish(channel_, error); }

 private:
  template <class Body>
  void named(Body body) {
    try {
      body();
    } catch (const Error& error) {
      std::string front;
      try {
        front = where() + ": ";
      } catch (const std::bad_alloc&) {  // without it
      }
      throw error.with_context(front);
    }
  }

  const std::shared_ptr<Mailbox> post_;
  const uint64_t channel_;
  std::vector<PostedReceive> awaited_;  // with room for every rank
};

}  // namespace

std::unique_ptr<Transport> make_mailbox_transport(std::shared_ptr<Mailbox> mailbox) {
  return std::make_unique<MailboxTransport>(std::move(mailbox), 1);
}

}  // namespace muonrt
