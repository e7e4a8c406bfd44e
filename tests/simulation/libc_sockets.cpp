// Replaces the socket functions of the C library for descriptors of a simulated process. Calls with
// other descriptors are passed to the C library.

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdlib>
#include <cstring>

#include "simulation/libc.hpp"
#include "simulation/network.hpp"

using namespace simulation;

namespace {

Network& network() {
  enter_system().advance(kMicrosecond);
  return *Network::current();
}

Address address_of(const sockaddr* address) {
  const auto& in = *reinterpret_cast<const sockaddr_in*>(address);
  return {ntohl(in.sin_addr.s_addr), ntohs(in.sin_port)};
}

int write_address(Address from, sockaddr* to, socklen_t* length) {
  sockaddr_in in{};
  in.sin_family = AF_INET;
  in.sin_addr.s_addr = htonl(from.host);
  in.sin_port = htons(from.port);
  std::memcpy(to, &in, std::min<size_t>(*length, sizeof in));
  *length = sizeof in;
  return 0;
}

int fail_with(int error) {
  errno = error;
  return -1;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int socket(int domain, int type, int protocol) noexcept {
  if (!inside() || !Network::current()) return SIMULATION_REAL(socket)(domain, type, protocol);
  if (domain != AF_INET) return fail_with(EAFNOSUPPORT);
  return network().make_socket(!(type & SOCK_NONBLOCK));
}

int eventfd(unsigned value, int flags) noexcept {
  if (!inside() || !Network::current()) return SIMULATION_REAL(eventfd)(value, flags);
  return network().make_counter(value, !(flags & EFD_NONBLOCK));
}

int bind(int fd, const sockaddr* address, socklen_t length) noexcept {
  if (!Network::owns(fd)) return SIMULATION_REAL(bind)(fd, address, length);
  return network().bind(fd, address_of(address));
}

int listen(int fd, int backlog) noexcept {
  return Network::owns(fd) ? network().listen(fd, backlog) : SIMULATION_REAL(listen)(fd, backlog);
}

int accept4(int fd, sockaddr* address, socklen_t* length, int flags) {
  if (!Network::owns(fd)) return SIMULATION_REAL(accept4)(fd, address, length, flags);
  const int out = network().accept(fd, !(flags & SOCK_NONBLOCK));
  if (out >= 0 && address) write_address(Network::current()->find(out)->remote, address, length);
  return out;
}

int connect(int fd, const sockaddr* address, socklen_t length) {
  if (!Network::owns(fd)) return SIMULATION_REAL(connect)(fd, address, length);
  return network().connect(fd, address_of(address));
}

ssize_t send(int fd, const void* data, size_t bytes, int flags) {
  if (!Network::owns(fd)) return SIMULATION_REAL(send)(fd, data, bytes, flags);
  return network().send(fd, data, bytes, flags);
}

ssize_t recv(int fd, void* data, size_t bytes, int flags) {
  if (!Network::owns(fd)) return SIMULATION_REAL(recv)(fd, data, bytes, flags);
  return network().receive(fd, data, bytes, flags);
}

ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  if (!Network::owns(fd)) return SIMULATION_REAL(sendmsg)(fd, message, flags);
  std::string all;
  for (size_t i = 0; i < message->msg_iovlen; ++i)
    all.append(static_cast<const char*>(message->msg_iov[i].iov_base), message->msg_iov[i].iov_len);
  return network().send(fd, all.data(), all.size(), flags);
}

ssize_t recvmsg(int fd, msghdr* message, int flags) {
  if (!Network::owns(fd)) return SIMULATION_REAL(recvmsg)(fd, message, flags);
  size_t most = 0;
  for (size_t i = 0; i < message->msg_iovlen; ++i) most += message->msg_iov[i].iov_len;
  std::string all(most, '\0');
  const ssize_t n = network().receive(fd, all.data(), most, flags);
  auto left = static_cast<size_t>(std::max<ssize_t>(n, 0));
  for (size_t i = 0; i < message->msg_iovlen; ++i) {
    const size_t here = std::min(left, message->msg_iov[i].iov_len);
    if (here > 0)
      std::memcpy(message->msg_iov[i].iov_base, all.data() + static_cast<size_t>(n) - left, here);
    left -= here;
  }
  return n;
}

ssize_t read(int fd, void* data, size_t bytes) {
  if (!Network::owns(fd)) return SIMULATION_REAL(read)(fd, data, bytes);
  return network().receive(fd, data, bytes, 0);
}

ssize_t write(int fd, const void* data, size_t bytes) {
  if (!Network::owns(fd)) return SIMULATION_REAL(write)(fd, data, bytes);
  return network().send(fd, data, bytes, 0);
}

int shutdown(int fd, int how) noexcept {
  return Network::owns(fd) ? network().shutdown(fd, how) : SIMULATION_REAL(shutdown)(fd, how);
}

int close(int fd) { return Network::owns(fd) ? network().close(fd) : SIMULATION_REAL(close)(fd); }

int poll(pollfd* list, nfds_t count, int timeout_ms) {
  if (!inside() || !Network::current()) return SIMULATION_REAL(poll)(list, count, timeout_ms);
  return network().poll(list, count, timeout_ms);
}

int setsockopt(int fd, int level, int name, const void* value, socklen_t length) noexcept {
  if (!Network::owns(fd)) return SIMULATION_REAL(setsockopt)(fd, level, name, value, length);
  if (level == SOL_SOCKET && name == SO_LINGER)
    network().find(fd)->resets = static_cast<const linger*>(value)->l_onoff != 0;
  return 0;
}

int getsockopt(int fd, int level, int name, void* value, socklen_t* length) noexcept {
  if (!Network::owns(fd)) return SIMULATION_REAL(getsockopt)(fd, level, name, value, length);
  if (level != SOL_SOCKET || name != SO_ERROR) return fail_with(ENOPROTOOPT);
  Endpoint* const e = network().find(fd);
  const int error = std::exchange(e->error, 0);
  std::memcpy(value, &error, sizeof error);
  *length = sizeof error;
  return 0;
}

int getsockname(int fd, sockaddr* address, socklen_t* length) noexcept {
  if (!Network::owns(fd)) return SIMULATION_REAL(getsockname)(fd, address, length);
  return write_address(network().find(fd)->local, address, length);
}

int getpeername(int fd, sockaddr* address, socklen_t* length) noexcept {
  if (!Network::owns(fd)) return SIMULATION_REAL(getpeername)(fd, address, length);
  const Endpoint* const e = network().find(fd);
  if (e->state != Endpoint::State::kConnected) return fail_with(ENOTCONN);
  return write_address(e->remote, address, length);
}

int ioctl(int fd, unsigned long request, ...) noexcept {
  va_list list;
  va_start(list, request);
  void* const argument = va_arg(list, void*);
  va_end(list);
  if (!Network::owns(fd)) return SIMULATION_REAL(ioctl)(fd, request, argument);
  Endpoint* const e = network().find(fd);
  const Endpoint* const peer = Network::current()->find(e->peer);
  if (request == FIONBIO) e->blocks = *static_cast<int*>(argument) == 0;
  if (request == SIOCOUTQ)
    *static_cast<int*>(argument) =
        peer && e->state == Endpoint::State::kConnected ? static_cast<int>(peer->in_transit) : 0;
  return 0;
}

/// A process has two network interfaces: lo, and eth0 with the process's address.
int getifaddrs(ifaddrs** list) noexcept {
  if (!inside() || !Network::current()) return SIMULATION_REAL(getifaddrs)(list);
  struct Both {
    ifaddrs interface[2];
    sockaddr_in address[2], mask[2];
    char name[2][8];
  };
  auto* const both = static_cast<Both*>(std::calloc(1, sizeof(Both)));
  const uint32_t hosts[] = {INADDR_LOOPBACK, Network::host_of(Scheduler::get().process())};
  for (int i = 0; i < 2; ++i) {
    std::strcpy(both->name[i], i == 0 ? "lo" : "eth0");
    socklen_t length = sizeof(sockaddr_in);
    write_address({hosts[i], 0}, reinterpret_cast<sockaddr*>(&both->address[i]), &length);
    write_address({0xff000000u, 0}, reinterpret_cast<sockaddr*>(&both->mask[i]), &length);
    ifaddrs& out = both->interface[i];
    out.ifa_next = i == 0 ? &both->interface[1] : nullptr;
    out.ifa_name = both->name[i];
    out.ifa_flags = IFF_UP | IFF_RUNNING | (i == 0 ? IFF_LOOPBACK : 0);
    out.ifa_addr = reinterpret_cast<sockaddr*>(&both->address[i]);
    out.ifa_netmask = reinterpret_cast<sockaddr*>(&both->mask[i]);
  }
  *list = both->interface;
  return 0;
}

void freeifaddrs(ifaddrs* list) noexcept {
  if (!inside() || !Network::current()) return SIMULATION_REAL(freeifaddrs)(list);
  std::free(list);
}

}  // extern "C"
#pragma GCC visibility pop
