// Command policies enforces the NetworkPolicies of the bare cluster with
// kube-router's controller, which does it with iptables and sets of addresses.
//
// All nodes of that cluster are this machine, so one controller looks after
// the pods of all of them: each is shown to it as one of the node it is told.
// Pods of nodes that KWOK plays have addresses that are elsewhere.
package main

import (
	"flag"
	"log"
	"net"
	"sync"

	"github.com/cloudnativelabs/kube-router/v2/pkg/controllers/netpol"
	"github.com/cloudnativelabs/kube-router/v2/pkg/healthcheck"
	"github.com/cloudnativelabs/kube-router/v2/pkg/options"
	core "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "how to reach the API server")
	address := flag.String("address", "", "of the node whose pods all are")
	network := flag.String("network", "", "of the addresses of all nodes")
	clean := flag.Bool("clean", false, "remove what an earlier one has left, and end")
	config := options.NewKubeRouterConfig()
	flag.StringVar(&config.HostnameOverride, "node", "", "the name of that node")
	flag.Func("services", "the network of Services", func(network string) error {
		config.ClusterIPCIDRs = []string{network}
		return nil
	})
	flag.Parse()
	config.EnableIPv4 = true
	if *clean {
		(&netpol.NetworkPolicyController{}).Cleanup()
		return
	}
	_, nodes, err := net.ParseCIDR(*network)
	if err == nil {
		err = run(*kubeconfig, *address, nodes, config)
	}
	if err != nil {
		log.Fatal(err)
	}
}

func run(kubeconfig, address string, nodes *net.IPNet, config *options.KubeRouterConfig) error {
	rest, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return err
	}
	stop := make(chan struct{})
	factory := informers.NewSharedInformerFactory(client, 0)
	pods := factory.Core().V1().Pods().Informer()
	policies := factory.Networking().V1().NetworkPolicies().Informer()
	namespaces := factory.Core().V1().Namespaces().Informer()
	err = pods.SetTransform(func(obj any) (any, error) {
		if pod, ok := obj.(*core.Pod); ok && nodes.Contains(net.ParseIP(pod.Status.HostIP)) {
			pod.Status.HostIP = address
		}
		return obj, nil
	})
	if err != nil {
		return err
	}
	factory.Start(stop)
	factory.WaitForCacheSync(stop)
	tables, sets, err := netpol.NewIPTablesHandlers(config)
	if err != nil {
		return err
	}
	controller, err := netpol.NewNetworkPolicyController(
		client, config, pods, policies, namespaces, &sync.Mutex{}, tables, sets)
	if err != nil {
		return err
	}
	if _, err := pods.AddEventHandler(controller.PodEventHandler); err != nil {
		return err
	}
	if _, err := policies.AddEventHandler(controller.NetworkPolicyEventHandler); err != nil {
		return err
	}
	if _, err := namespaces.AddEventHandler(controller.NamespaceEventHandler); err != nil {
		return err
	}
	beats := make(chan *healthcheck.ControllerHeartbeat, 10)
	go func() {
		for range beats {
		}
	}()
	var group sync.WaitGroup
	group.Add(1)
	controller.Run(beats, stop, &group)
	return nil
}
