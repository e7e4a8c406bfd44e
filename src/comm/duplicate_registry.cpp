#include "comm/duplicate_registry.hpp"

#include "comm/transport.hpp"

namespace muonrt {

void DuplicateRegistry::abort(Status status, const std::string& message) noexcept {
  const std::lock_guard lock(mutex_);
  if (!aborted_) aborted_ = make_error(status, message);
  for (Transport* const t : list_) t->abort_with_duplicates(status, message);
}

void DuplicateRegistration::join(std::shared_ptr<DuplicateRegistry> registry, Transport& self) {
  const std::lock_guard lock(registry->mutex_);
  element_ = node_.begin();
  *element_ = &self;
  registry->list_.splice(registry->list_.end(), node_);
  registry_ = std::move(registry);
  if (registry_->aborted_)
    self.abort_with_duplicates(registry_->aborted_->status(), registry_->aborted_->message());
}

void DuplicateRegistration::leave() noexcept {
  if (!registry_) return;
  {
    const std::lock_guard lock(registry_->mutex_);
    registry_->list_.erase(element_);
  }
  registry_.reset();
}

}  // namespace muonrt
