#include "comm/tcp/mailbox_transport.hpp"

#include <cstring>

#include "base/hash.hpp"

namespace muonrt {

namespace {

class MailboxTransport final : public Transport {
 public:
  MailboxTransport(std::shared_ptr<Mailbox> mailbox, uint64_t channel)
      : Transport(mailbox->rank(), mailbox->size()),
        mailbox_(std::move(mailbox)),
        channel_(channel) {
    posted_.reserve(static_cast<size_t>(size()));
    mailbox_->enter(channel_);
  }
  ~MailboxTransport() override {
    retire();
    mailbox_->leave(channel_);
  }

  std::string name() const override { return mailbox_->name(); }
  std::optional<Error> published_error() const override {
    return mailbox_->published_error(channel_);
  }

 protected:
  void do_exchange(std::span<const SendTo> sends, std::span<const ReceiveFrom> receives) override {
    const Deadline deadline = Deadline::in_ms(timeout_ms());
    with_where([&] {
      posted_.clear();
      for (const ReceiveFrom& r : receives) {
        if (r.peer != rank()) posted_.push_back({r.peer, r.data, r.bytes});
      }
      const ReceiveScope scope(*mailbox_, channel_, posted_);
      for (const SendTo& s : sends) {
        if (s.peer != rank()) mailbox_->send(channel_, s.peer, s.data, s.bytes, deadline);
      }
      mailbox_->wait_receives(channel_, deadline);
    });
  }

  void do_allgather(const void* mine, void* all, int64_t bytes) override {
    const Deadline deadline = Deadline::in_ms(timeout_ms());
    auto* const out = static_cast<char*>(all);
    const int64_t total = bytes * size();
    with_where([&] {
      std::memcpy(out + rank() * bytes, mine, static_cast<size_t>(bytes));
      posted_.clear();
      if (rank() > 0) posted_.push_back({0, out, total});
      for (int32_t r = 1; rank() == 0 && r < size(); ++r)
        posted_.push_back({r, out + r * bytes, bytes});
      const ReceiveScope scope(*mailbox_, channel_, posted_);
      if (rank() > 0) mailbox_->send(channel_, 0, mine, bytes, deadline);
      mailbox_->wait_receives(channel_, deadline);
      for (int32_t r = 1; rank() == 0 && r < size(); ++r)
        mailbox_->send(channel_, r, out, total, deadline);
    });
  }

  std::unique_ptr<Transport> do_duplicate() override {
    // Equal on every rank, and different for each duplicate.
    Hash child;
    child.value(static_cast<int64_t>(channel_));
    child.value(operation().ordinal);
    auto out = std::make_unique<MailboxTransport>(mailbox_, child.digest());
    confirm_duplicate(*out);
    return out;
  }

  void publish(const Error& error) noexcept override { mailbox_->publish(channel_, error); }

 private:
  template <class Body>
  void with_where(Body body) {
    try {
      body();
    } catch (const Error& error) {
      std::string prefix;
      try {
        prefix = where() + ": ";
      } catch (const std::bad_alloc&) {  // the message becomes shorter
      }
      throw error.with_context(prefix);
    }
  }

  const std::shared_ptr<Mailbox> mailbox_;
  const uint64_t channel_;
  std::vector<PostedReceive> posted_;  // has room for every rank
};

}  // namespace

std::unique_ptr<Transport> make_mailbox_transport(std::shared_ptr<Mailbox> mailbox) {
  return std::make_unique<MailboxTransport>(std::move(mailbox), 1);
}

}  // namespace muonrt
