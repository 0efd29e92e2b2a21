"""The login that the official client finds: by plugins, by several files, through proxies. Only here it is imported.

It reads all that a kubeconfig can say and renews what expires; its models and calls are not used.
"""

import os
import ssl
import threading

from kubernetes import config
from kubernetes.client.configuration import Configuration
from kubernetes.client.rest import should_bypass_proxies

from shardwise_operator.runtime.login import Login


def official_login(kubeconfig: str) -> Login:
    """Return the login of `kubeconfig`; without one of the pod that this is, or of $KUBECONFIG or ~/.kube/config.

    Raises:
        kubernetes.config.ConfigException: none of them exists, or it cannot be read.
    """
    configuration = Configuration()
    if not kubeconfig and "KUBERNETES_SERVICE_HOST" in os.environ:
        config.load_incluster_config(configuration)
    else:
        config.load_kube_config(kubeconfig or None, client_configuration=configuration)
    url, renewing = str(configuration.host), threading.Lock()

    def authorization() -> str:
        with renewing:
            return (configuration.get_api_key_with_prefix("BearerToken") or "").strip()

    bypassed = should_bypass_proxies(url, configuration.no_proxy or "")
    return Login(
        url=url,
        authorization=authorization,
        tls=_tls(configuration) if url.startswith("https:") else None,
        server_name=configuration.tls_server_name or "",
        proxy="" if bypassed else configuration.proxy or "",
    )


def _tls(configuration: Configuration) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert, cadata=configuration.ca_cert_data)
    if not configuration.verify_ssl:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, configuration.key_file)
    return context
