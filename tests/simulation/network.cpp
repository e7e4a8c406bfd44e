#include "simulation/network.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace simulation {

namespace {

constexpr int64_t kRetryConnect = kSecond, kGiveUpConnect = 127 * kSecond;

int fail_with(int error) {
  errno = error;
  return -1;
}

}  // namespace

Network* Network::current_ = nullptr;

Network::Network(Scheduler& scheduler, const Weather& weather, int processes)
    : scheduler_(scheduler),
      weather_(weather),
      isolated_(static_cast<size_t>(processes), 0),
      flips_(isolated_.size()) {
  current_ = this;
}

Endpoint& Network::add(bool blocks) {
  auto e = std::make_unique<Endpoint>();
  e->fd = next_fd_++;
  e->process = scheduler_.process();
  e->blocks = blocks;
  Endpoint& out = *e;
  endpoints_[out.fd] = std::move(e);
  return out;
}

Endpoint* Network::find(int fd) {
  const auto found = endpoints_.find(fd);
  return found == endpoints_.end() ? nullptr : found->second.get();
}

/// Returns an endpoint of the calling process. Sets errno to EBADF and returns null if `fd` is not
/// an endpoint.
Endpoint* Network::checked(int fd) {
  Endpoint* const e = find(fd);
  if (e && e->process == scheduler_.process()) return e;
  errno = EBADF;
  scheduler_.fail(muonrt::cat("a call uses descriptor ", fd, ", which is closed"));
  return nullptr;
}

int64_t Network::latency(int from, int to) {
  if (from == to) return scheduler_.random().below(20 * kMicrosecond);
  return weather_.least_latency +
         scheduler_.random().below(weather_.most_latency - weather_.least_latency + 1);
}

int64_t Network::blocked_until(int from, int to) const {
  if (from == to) return 0;
  return std::max(isolated_[static_cast<size_t>(from)], isolated_[static_cast<size_t>(to)]);
}

void Network::changed(const Endpoint& e) {
  scheduler_.wake(&isolated_[static_cast<size_t>(e.process)]);
}

int Network::make_socket(bool blocks) { return add(blocks).fd; }

int Network::make_counter(uint64_t value, bool blocks) {
  Endpoint& e = add(blocks);
  e.counts = true;
  e.counter = value;
  return e.fd;
}

Endpoint* Network::listener_at(Address address) {
  for (const auto& [fd, e] : endpoints_) {
    const bool here = e->local.host == address.host ||
                      (e->local.host == 0 && host_of(e->process) == address.host);
    if (e->state == Endpoint::State::kListening && e->local.port == address.port && here)
      return e.get();
  }
  return nullptr;
}

int Network::bind(int fd, Address address) {
  Endpoint* const e = checked(fd);
  if (!e) return -1;
  if (address.host != 0 && address.host != host_of(e->process) && address.host != INADDR_LOOPBACK)
    return fail_with(EADDRNOTAVAIL);
  if (address.port == 0) address.port = next_port_++;
  e->local = address;
  return 0;
}

int Network::listen(int fd, int backlog) {
  Endpoint* const e = checked(fd);
  if (!e) return -1;
  const Address here{host_of(e->process), e->local.port};
  if (listener_at(here)) return fail_with(EADDRINUSE);
  e->state = Endpoint::State::kListening;
  e->most_backlog = static_cast<size_t>(std::max(backlog, 1));
  return 0;
}

int Network::accept(int fd, bool blocks) {
  Endpoint* const e = checked(fd);
  if (!e) return -1;
  if (e->state != Endpoint::State::kListening) return fail_with(EINVAL);
  if (e->backlog.empty()) return fail_with(EAGAIN);
  const int out = e->backlog.front();
  e->backlog.pop_front();
  find(out)->blocks = blocks;
  return out;
}

int Network::connect(int fd, Address to) {
  Endpoint* const e = checked(fd);
  if (!e) return -1;
  if (e->state != Endpoint::State::kNew) return fail_with(EISCONN);
  if (e->local.port == 0) e->local.port = next_port_++;
  e->local.host = host_of(e->process);
  e->remote = to;
  e->state = Endpoint::State::kConnecting;
  scheduler_.log("connects to process ", to.host - host_of(0));
  scheduler_.after(latency(e->process, 0), [this, fd, to, end = scheduler_.now() + kGiveUpConnect] {
    try_to_connect(fd, to, end);
  });
  return fail_with(EINPROGRESS);
}

void Network::refuse(int fd, int error, int64_t delay) {
  scheduler_.after(delay, [this, fd, error] {
    Endpoint* const e = find(fd);
    if (!e || e->state != Endpoint::State::kConnecting) return;
    e->state = Endpoint::State::kClosed;
    e->error = error;
    changed(*e);
  });
}

/// Handles the arrival of the first packet of a connection.
void Network::try_to_connect(int fd, Address to, int64_t give_up) {
  Endpoint* const client = find(fd);
  if (!client || client->state != Endpoint::State::kConnecting) return;
  const int server_process = static_cast<int>(to.host - host_of(0));
  const bool exists = server_process >= 0 && server_process < static_cast<int>(isolated_.size());
  if (!exists) return refuse(fd, EHOSTUNREACH, 0);
  Endpoint* const listener = listener_at(to);
  const bool lost = blocked_until(client->process, server_process) > scheduler_.now() ||
                    (listener && listener->backlog.size() >= listener->most_backlog);
  if (lost) {
    if (scheduler_.now() >= give_up) return refuse(fd, ETIMEDOUT, 0);
    return scheduler_.after(kRetryConnect,
                            [this, fd, to, give_up] { try_to_connect(fd, to, give_up); });
  }
  const int64_t back = latency(server_process, client->process);
  if (!listener) return refuse(fd, ECONNREFUSED, back);
  Endpoint& server = add(false);
  server.process = server_process;
  server.state = Endpoint::State::kConnected;
  server.local = to;
  server.remote = client->local;
  server.peer = fd;
  client->peer = server.fd;
  listener->backlog.push_back(server.fd);
  changed(*listener);
  client->last_arrival = scheduler_.now() + back;
  scheduler_.after(back, [this, fd, there = server.fd] {
    Endpoint* const e = find(fd);
    if (!e) return send_reset(there, 0);
    if (e->state != Endpoint::State::kConnecting) return;
    e->state = Endpoint::State::kConnected;
    changed(*e);
  });
}

int64_t Network::room(const Endpoint& e) {
  const Endpoint* const peer = find(e.peer);
  return peer ? std::max<int64_t>(0, weather_.window - peer->window_used) : weather_.window;
}

void Network::transmit(Endpoint& from, Endpoint::Segment segment) {
  Endpoint* const to = find(from.peer);
  if (!to) {  // the peer is closed
    if (!segment.end) send_reset(from.fd, from.process);
    return;
  }
  const auto bytes = static_cast<int64_t>(segment.bytes.size());
  if (bytes > 0 && heard_.size() < 64) heard_.push_back(segment.bytes);
  to->window_used += bytes;
  to->in_transit += bytes;
  auto flips = flips_.begin() + from.process;
  if (*flips && bytes > 0) {
    *flips = false;
    const auto bit = static_cast<size_t>(scheduler_.random().below(8 * bytes));
    segment.bytes[bit / 8] = static_cast<char>(segment.bytes[bit / 8] ^ (1 << (bit % 8)));
    scheduler_.log("a bit is flipped");
  }
  to->wire.push_back(std::move(segment));
  to->last_arrival =
      std::max(to->last_arrival, scheduler_.now() + latency(from.process, to->process));
  scheduler_.at(to->last_arrival, [this, fd = to->fd] { segment_arrives(fd); });
}

/// Handles the arrival of the next segment. There is one such event for each segment.
void Network::segment_arrives(int fd) {
  Endpoint* const e = find(fd);
  if (!e || e->wire.empty()) return;
  const int from = static_cast<int>(e->remote.host - host_of(0));
  const int64_t until = blocked_until(from, e->process);
  if (until == kNever) return;
  if (until > scheduler_.now())
    return scheduler_.at(until + latency(from, e->process), [this, fd] { segment_arrives(fd); });
  Endpoint::Segment segment = std::move(e->wire.front());
  e->wire.pop_front();
  const auto bytes = static_cast<int64_t>(segment.bytes.size());
  e->in_transit -= bytes;
  if (e->state == Endpoint::State::kClosed) return;
  scheduler_.log(bytes, segment.end ? " bytes and the end" : " bytes", " of process ", from,
                 " arrive at process ", e->process);
  e->received += segment.bytes;
  e->end_received |= segment.end;
  changed(*e);
  if (Endpoint* const peer = find(e->peer)) changed(*peer);  // the peer's SIOCOUTQ changes
}

/// Sends a reset to `fd`. The reset may arrive before data that was sent earlier.
void Network::send_reset(int fd, int from_process) {
  const Endpoint* const e = find(fd);
  if (!e) return;
  const int64_t until = blocked_until(from_process, e->process);
  if (until == kNever) return;
  const int64_t time = std::max(until, scheduler_.now()) + latency(from_process, e->process);
  scheduler_.at(time, [this, fd] { reset(fd); });
}

void Network::reset(int fd) {
  Endpoint* const e = find(fd);
  if (!e || e->state == Endpoint::State::kClosed) return;
  scheduler_.log("a connection of process ", e->process, " is reset");
  e->error = e->state == Endpoint::State::kConnecting ? ECONNREFUSED : ECONNRESET;
  e->state = Endpoint::State::kClosed;
  e->wire.clear();
  changed(*e);
}

ssize_t Network::send(int fd, const void* data, size_t bytes, int flags) {
  while (true) {
    Endpoint* const e = checked(fd);
    if (!e) return -1;
    if (e->counts) {
      uint64_t more = 0;
      std::memcpy(&more, data, sizeof more);
      e->counter += more;
      changed(*e);
      return sizeof more;
    }
    if (e->error) return fail_with(std::exchange(e->error, 0));
    if (e->state == Endpoint::State::kClosed || e->end_sent) return fail_with(EPIPE);
    if (e->state != Endpoint::State::kConnected)
      return fail_with(e->state == Endpoint::State::kConnecting ? EAGAIN : ENOTCONN);
    auto n = std::min(static_cast<int64_t>(bytes), room(*e));
    if (n > 0) {
      // Like the real system, accepts a small message completely if there is room for it.
      const bool small = n <= Weather::kLeastWindow && n == static_cast<int64_t>(bytes);
      if (weather_.short_transfers && !small && scheduler_.random().one_in(3))
        n = 1 + scheduler_.random().below(n);
      transmit(*e, {std::string(static_cast<const char*>(data), static_cast<size_t>(n)), false});
      return n;
    }
    if (bytes == 0) return 0;
    if (!e->blocks || (flags & MSG_DONTWAIT)) return fail_with(EAGAIN);
    scheduler_.wait(&isolated_[static_cast<size_t>(e->process)]);
  }
}

ssize_t Network::receive(int fd, void* data, size_t bytes, int flags) {
  while (true) {
    Endpoint* const e = checked(fd);
    if (!e) return -1;
    if (bytes == 0) return 0;
    if (e->counts && e->counter > 0) {
      std::memcpy(data, &e->counter, sizeof e->counter);
      e->counter = 0;
      return sizeof e->counter;
    }
    if (e->counts && !e->blocks) return fail_with(EAGAIN);
    if (!e->received.empty() && !e->reads_ended) {
      auto n = std::min(bytes, e->received.size());
      if (weather_.short_transfers && scheduler_.random().one_in(3))
        n = 1 + static_cast<size_t>(scheduler_.random().below(static_cast<int64_t>(n)));
      std::memcpy(data, e->received.data(), n);
      if (flags & MSG_PEEK) return static_cast<ssize_t>(n);
      e->received.erase(0, n);
      // After a delay, the sender is notified that there is space.
      const int there = e->peer >= 0 && find(e->peer) ? find(e->peer)->process : e->process;
      scheduler_.after(latency(e->process, there), [this, fd, n] {
        Endpoint* const reader = find(fd);
        if (!reader) return;
        reader->window_used -= static_cast<int64_t>(n);
        if (Endpoint* const writer = find(reader->peer)) changed(*writer);
      });
      return static_cast<ssize_t>(n);
    }
    if (e->error) return fail_with(std::exchange(e->error, 0));
    if (e->end_received || e->reads_ended || e->state == Endpoint::State::kClosed) return 0;
    if (e->state == Endpoint::State::kNew) return fail_with(ENOTCONN);
    if (!e->blocks || (flags & MSG_DONTWAIT)) return fail_with(EAGAIN);
    scheduler_.wait(&isolated_[static_cast<size_t>(e->process)]);
  }
}

int Network::shutdown(int fd, int how) {
  Endpoint* const e = checked(fd);
  if (!e) return -1;
  if (e->state != Endpoint::State::kConnected) return fail_with(ENOTCONN);
  if (how != SHUT_WR) e->reads_ended = true;
  if (how != SHUT_RD && !e->end_sent) {
    e->end_sent = true;
    transmit(*e, {"", true});
  }
  changed(*e);
  return 0;
}

void Network::close_endpoint(Endpoint& e) {
  for (const int waiting : e.backlog) {
    if (Endpoint* const one = find(waiting)) close_endpoint(*one);
  }
  if (e.state == Endpoint::State::kConnected) {
    // Like the real system, resets a connection that is closed before all data has been read.
    if (e.resets || !e.received.empty())
      send_reset(e.peer, e.process);
    else if (!e.end_sent)
      transmit(e, {"", true});
    if (e.in_transit > 0) send_reset(e.peer, e.process);
  }
  endpoints_.erase(e.fd);
}

int Network::close(int fd) {
  Endpoint* const e = checked(fd);
  if (!e) return -1;
  close_endpoint(*e);
  return 0;
}

short Network::events_of(const Endpoint& e) {
  using State = Endpoint::State;
  if (e.counts) return static_cast<short>(POLLOUT | (e.counter > 0 ? POLLIN : 0));
  if (e.state == State::kListening) return e.backlog.empty() ? 0 : POLLIN;
  if (e.state == State::kConnecting) return 0;
  short out = 0;
  if (e.state == State::kClosed || e.state == State::kNew) out |= POLLOUT | POLLHUP;
  if (e.state == State::kClosed) out |= POLLIN;
  if (e.error) out |= POLLERR;
  if (!e.received.empty() || e.end_received || e.reads_ended) out |= POLLIN;
  if (e.end_received) out |= POLLRDHUP;
  if (e.end_received && e.end_sent) out |= POLLHUP;
  if (e.state == State::kConnected && (room(e) > 0 || e.end_sent)) out |= POLLOUT;
  return out;
}

int Network::poll(pollfd* list, nfds_t count, int timeout_ms) {
  const int process = scheduler_.process();
  const int64_t until = timeout_ms < 0 ? kNever : scheduler_.now() + timeout_ms * kMillisecond;
  while (true) {
    int ready = 0;
    for (nfds_t i = 0; i < count; ++i) {
      pollfd& p = list[i];
      p.revents = 0;
      if (p.fd < 0) continue;
      const Endpoint* const e = find(p.fd);
      p.revents = e ? static_cast<short>(events_of(*e) & (p.events | POLLERR | POLLHUP)) : POLLNVAL;
      ready += p.revents != 0;
    }
    if (ready > 0 || scheduler_.now() >= until) return ready;
    scheduler_.wait(&isolated_[static_cast<size_t>(process)], until);
  }
}

}  // namespace simulation
