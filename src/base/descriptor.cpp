#include "base/descriptor.hpp"

#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <mutex>

namespace muonrt {

/// The list of the open descriptors of this process. The forking thread holds the mutex during a
/// fork(), so the list is consistent in the child.
class Descriptors {
 public:
  static Descriptors& all() {
    // The object is never freed, because the process can fork at any time.
    static Descriptors* const it = new Descriptors;
    return *it;
  }

  void open(Descriptor& d, FunctionRef<int()> open) {
    const std::lock_guard lock(mutex_);
    d.fd_ = open();
    if (d) link(d);
  }

  void open(std::pair<Descriptor, Descriptor>& both, FunctionRef<bool(int (&)[2])> open) {
    const std::lock_guard lock(mutex_);
    int fds[2] = {-1, -1};
    if (!open(fds)) return;
    both.first.fd_ = fds[0];
    both.second.fd_ = fds[1];
    link(both.first);
    link(both.second);
  }

  void swap(Descriptor& a, Descriptor& b) {
    const std::lock_guard lock(mutex_);
    for (Descriptor* d : {&a, &b})
      if (*d) unlink(*d);
    std::swap(a.fd_, b.fd_);
    for (Descriptor* d : {&a, &b})
      if (*d) link(*d);
  }

  int release(Descriptor& d, bool closes) {
    const std::lock_guard lock(mutex_);
    if (!d) return -1;
    unlink(d);
    const int fd = std::exchange(d.fd_, -1);
    if (closes) close(fd);
    return fd;
  }

 private:
  Descriptors() {
    pthread_atfork([] { all().mutex_.lock(); }, [] { all().mutex_.unlock(); },
                   [] { all().close_in_child(); });
  }

  void link(Descriptor& d) {
    d.next_ = first_;
    if (first_) first_->previous_ = &d;
    first_ = &d;
  }

  void unlink(Descriptor& d) {
    (d.previous_ ? d.previous_->next_ : first_) = d.next_;
    if (d.next_) d.next_->previous_ = d.previous_;
    d.previous_ = d.next_ = nullptr;
  }

  void close_in_child() noexcept {
    while (Descriptor* const d = first_) {
      unlink(*d);
      close(std::exchange(d->fd_, -1));
    }
    mutex_.unlock();
  }

  std::mutex mutex_;
  Descriptor* first_ = nullptr;
};

Descriptor::Descriptor(FunctionRef<int()> open) { Descriptors::all().open(*this, open); }

std::pair<Descriptor, Descriptor> Descriptor::pair(FunctionRef<bool(int (&)[2])> open) {
  std::pair<Descriptor, Descriptor> out;
  Descriptors::all().open(out, open);
  return out;
}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (*this || other) Descriptors::all().swap(*this, other);
  return *this;
}

Descriptor::~Descriptor() {
  if (fd_ >= 0) Descriptors::all().release(*this, true);
}

int Descriptor::release() noexcept { return Descriptors::all().release(*this, false); }

}  // namespace muonrt
