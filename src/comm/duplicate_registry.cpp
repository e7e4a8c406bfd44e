#include "comm/duplicate_registry.hpp"

#include "comm/transport.hpp"

namespace muonrt {

void DuplicateRegistry::abort(Status status, const std::string& message) noexcept {
  const std::lock_guard lock(mutex_);
  if (!aborted_) aborted_ = make_error(status, message);
  for (Transport* const t : list_) t->abort_with_duplicates(status, message);
}

void DuplicateRegistration::join(std::shared_ptr<DuplicateRegistry> all, Transport& self) {
  const std::lock_guard lock(all->mutex_);
  at_ = own_.begin();
  *at_ = &self;
  all->list_.splice(all->list_.end(), own_);
  all_ = std::move(all);  // a place that `leave` gives back
  if (all_->aborted_)
    self.abort_with_duplicates(all_->aborted_->status(), all_->aborted_->message());
}

void DuplicateRegistration::leave() noexcept {
  if (!all_) return;
  {
    const std::lock_guard lock(all_->mutex_);
    all_->list_.erase(at_);
  }
  all_.reset();
}

}  // namespace muonrt
